"""The idx files of MNIST and its kin, plain or gzipped."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.readers.table import Row, Table, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from PIL.Image import Image

UNSIGNED_BYTE = 0x08


@dataclass(frozen=True, slots=True)
class ImageArray:
    """An image held as an array of bytes, [height, width] or [height, width, channels]."""

    pixels: NDArray[np.uint8]
    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def key(self) -> str:
        """What the image is known by: its pixels."""
        return hashlib.sha256(self.pixels.tobytes()).hexdigest()

    def open(self) -> Image:
        """The image as Pillow sees it."""
        from PIL import Image

        return Image.fromarray(self.pixels)


def read_idx(images: Path, labels: Path) -> Table:
    """Read a file of images and the file of their labels; the line of a row is its number."""
    pixels, classes = read_idx_array(images, 3), read_idx_array(labels, 1)
    if len(pixels) != len(classes):
        raise DataError(
            f"`{images}` has {len(pixels)} images and `{labels}` has {len(classes)} labels; copy them again"
        )
    rows = [
        Row(_values(image, int(label), f"{images} image {number}"), str(images), number)
        for number, (image, label) in enumerate(zip(pixels, classes, strict=True), start=1)
    ]
    return Table(str(images), ("image", "label"), rows)


def read_idx_array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one idx file of unsigned bytes with so many dimensions."""
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"`{path}` is not an idx file: it begins `{content[:4].hex()}`; give MNIST's layout")
    kind, found = content[2], content[3]
    if kind != UNSIGNED_BYTE or found != dimensions:
        raise DataError(
            f"`{path}` holds {found} dimensions of type 0x{kind:02x} where {dimensions} of unsigned bytes (0x08) "
            "are expected; check that images and labels are not mixed up"
        )
    begin = 4 + 4 * dimensions
    if len(content) < begin:
        raise DataError(f"`{path}` ends inside its header; copy it again")
    shape = struct.unpack(f">{dimensions}I", content[4:begin])
    if not all(shape):
        raise DataError(
            f"`{path}` holds nothing: its header promises {' x '.join(map(str, shape))} values; copy it again"
        )
    expected = begin + math.prod(shape)
    if len(content) != expected:
        raise DataError(f"`{path}` has {len(content)} bytes where its header promises {expected}; copy it again")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _values(image: NDArray[np.uint8], label: int, name: str) -> dict[str, Any]:
    return {"image": ImageArray(image, name), "label": str(label)}
