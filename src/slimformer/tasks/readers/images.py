"""Image folders, `<split>/<class>/<name>.jpg`, on disk or inside a zip file."""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.tasks.readers.table import Row, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image that is read when it is needed: a file, or a member of a zip file."""

    path: str
    member: str | None = None

    def __str__(self) -> str:
        return self.path if self.member is None else f"{self.path}/{self.member}"

    @property
    def key(self) -> str:
        """What the image is known by wherever its folder lies: split, class and name."""
        return "/".join(PurePosixPath(self.member or Path(self.path).as_posix()).parts[-3:])

    def read(self) -> bytes:
        """The encoded bytes."""
        if self.member is None:
            return Path(self.path).read_bytes()
        return _opened_zip(self.path, os.getpid()).read(self.member)

    def open(self) -> Image:
        """Decode the image."""
        from PIL import Image, UnidentifiedImageError

        try:
            image = Image.open(io.BytesIO(self.read()))
            image.load()
        except (UnidentifiedImageError, OSError, SyntaxError, zipfile.BadZipFile) as error:
            reason = "no known image format" if isinstance(error, UnidentifiedImageError) else str(error)
            raise DataError(f"`{self}` is not an image that can be read: {reason}; replace or remove it") from error
        return image

    def check(self) -> None:
        """Find a broken file at the price of reading it, without decoding its pixels.

        PNG files carry checksums; a JPEG file that lacks its end marker is decoded to make sure.
        """
        from PIL import Image

        content = self.read()
        try:
            with Image.open(io.BytesIO(content)) as image:
                whole = image.format != "JPEG" or content.rstrip(b"\0").endswith(b"\xff\xd9")
                image.verify()
        except (OSError, SyntaxError):
            whole = False
        if not whole:
            self.open()


def read_image_folder(root: Path, split: str) -> Table:
    """Read the images of `<root>/<split>`; the class of an image is the folder it lies in."""
    if root.suffix == ".zip":
        return _table(f"{root}/{split}", _zip_members(root, split))
    files = (path for path in sorted((root / split).glob("*/*")) if path.suffix.lower() in IMAGE_SUFFIXES)
    return _table(str(root / split), ((path.parent.name, ImageFile(str(path))) for path in files))


def split_folders(root: Path) -> list[str]:
    """Names of the folders that hold class folders with images, in a folder or a zip file."""
    if root.suffix == ".zip":
        parents = (PurePosixPath(name).parent.parent for name in _zip_names(root))
        return sorted({str(parent) for parent in parents if str(parent) != "."})
    return sorted(
        folder.name
        for folder in root.iterdir()
        if folder.is_dir() and any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.glob("*/*"))
    )


def _zip_members(root: Path, split: str) -> list[tuple[str, ImageFile]]:
    wanted = PurePosixPath(split)
    return [
        (PurePosixPath(name).parent.name, ImageFile(str(root), name))
        for name in _zip_names(root)
        if PurePosixPath(name).parent.parent == wanted
    ]


def _zip_names(root: Path) -> list[str]:
    try:
        names = _opened_zip(str(root), os.getpid()).namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"`{root}` is not a zip file that can be read: {error}; copy it again") from error
    return sorted(name for name in names if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES)


@lru_cache(maxsize=8)
def _opened_zip(path: str, process: int) -> zipfile.ZipFile:
    """One handle a process: data loader workers must not share a file position."""
    return zipfile.ZipFile(path)


def _table(name: str, images: Iterable[tuple[str, ImageFile]]) -> Table:
    rows = []
    for number, (label, image) in enumerate(images, start=1):
        image.check()
        rows.append(Row({"image": image, "label": label}, str(image), number))
    return Table(name, ("image", "label"), rows)
