"""Image folders, `<split>/<class>/<name>.jpg`, on disk or inside a zip file."""

from __future__ import annotations

import io
import lzma
import os
import re
import threading
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.files import open_file, read_limited
from slimformer.tasks.readers.table import Row, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from PIL.Image import Image

#: No picture of a data set is larger, encoded or decoded; a file of a few bytes can claim to be.
MOST_BYTES, MOST_PIXELS = 2**28, 2**26
#: Filters of warnings belong to the whole process.
_PILLOW = threading.Lock()
#: Pillow's names of the formats of these; others, such as PostScript, it hands over to programs of the system.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def is_image_name(name: str) -> bool:
    """Whether a file or a member of a zip file is an image by its name; what systems put beside them is hidden."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts if part not in (".", ".."))
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden


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
        """The encoded bytes; whatever fails is a `DataError`."""
        try:
            if self.member is None:
                return read_limited(Path(self.path), MOST_BYTES)
            packed = _opened_zip(self.path)
            if packed.getinfo(self.member).file_size > MOST_BYTES:
                raise self._unreadable(f"it unpacks to more than {MOST_BYTES:,} bytes")
            return packed.read(self.member)
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error
        # Of a wrong sum, a password, a way of packing that is not known, a member that has gone.
        except (zipfile.BadZipFile, RuntimeError, KeyError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise self._unreadable(str(error)) from error

    def open(self) -> Image:
        """Decode the image."""
        image = self._begin(self.read())
        try:
            image.load()
        except Exception as error:  # each of Pillow's formats fails in its own way
            raise self._unreadable(str(error)) from error
        return image

    def check(self) -> None:
        """Find a broken file at the price of reading it, without decoding its pixels.

        PNG files carry checksums; a JPEG file that lacks its end marker is decoded to make sure.
        """
        content = self.read()
        image = self._begin(content)
        whole = image.format != "JPEG" or content.rstrip(b"\0").endswith(b"\xff\xd9")
        try:
            image.verify()
        except Exception:  # `open` says what is wrong
            whole = False
        if not whole:
            self.open()

    def _begin(self, content: bytes) -> Image:
        """The image before its pixels are decoded; one that would fill the memory is refused."""
        from PIL import Image, UnidentifiedImageError

        try:
            with _PILLOW, warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                Image.init()
                known = [each for each in FORMATS if each in Image.OPEN]
                image = Image.open(io.BytesIO(content), formats=known)
        except Image.DecompressionBombError as error:
            size = re.search(r"\d+", str(error))
            raise self._too_large(int(size[0]) if size else MOST_PIXELS) from error
        except UnidentifiedImageError as error:
            raise self._unreadable("no known image format") from error
        except Exception as error:
            raise self._unreadable(str(error)) from error
        if image.width * image.height > MOST_PIXELS:
            raise self._too_large(image.width * image.height)
        return image

    def _too_large(self, pixels: int) -> DataError:
        return self._unreadable(f"it has {pixels:,} pixels, more than {MOST_PIXELS:,}")

    def _unreadable(self, reason: str) -> DataError:
        return DataError(f"`{self}` is not an image that can be read: {reason}; replace or remove it")


def read_image_folder(root: Path, split: str) -> Table:
    """Read the images of `<root>/<split>`; the class of an image is the folder it lies in."""
    if root.suffix == ".zip":
        return _table(f"{root}/{split}", _zip_members(root, split))
    files = (path for path in sorted((root / split).glob("*/*")) if is_image_name(path.name))
    return _table(str(root / split), ((path.parent.name, ImageFile(str(path))) for path in files))


def split_folders(root: Path) -> list[str]:
    """Names of the folders that hold class folders with images, in a folder or a zip file."""
    if root.suffix == ".zip":
        parents = (PurePosixPath(name).parent.parent for name in _zip_names(root))
        return sorted({str(parent) for parent in parents if str(parent) != "."})
    return sorted(
        folder.name
        for folder in root.iterdir()
        if folder.is_dir() and any(is_image_name(path.name) for path in folder.glob("*/*"))
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
        names = _opened_zip(str(root)).namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"`{root}` is not a zip file that can be read: {reason}; copy it again") from error
    return sorted(name for name in names if is_image_name(name))


def _opened_zip(path: str) -> zipfile.ZipFile:
    """A zip file by what it is now: a path may lead to another one once the folder or the file has changed."""
    place = Path(path).resolve()
    state = place.stat()
    return _zip_handle(str(place), state.st_mtime_ns, state.st_size, os.getpid())


@lru_cache(maxsize=8)
def _zip_handle(path: str, changed: int, size: int, process: int) -> zipfile.ZipFile:
    """One handle a process: data loader workers must not share a file position."""
    open_file(Path(path)).close()  # nothing but a file
    return zipfile.ZipFile(path)


def _table(name: str, images: Iterable[tuple[str, ImageFile]]) -> Table:
    rows = []
    for number, (label, image) in enumerate(images, start=1):
        image.check()
        rows.append(Row({"image": image, "label": label}, str(image), number))
    if not rows:
        raise DataError(
            f"`{name}` holds no images in folders of their classes; put them into `{name}/<class>/`, in files that end "
            f"in one of: {', '.join(sorted(IMAGE_SUFFIXES))}"
        )
    return Table(name, ("image", "label"), rows)
