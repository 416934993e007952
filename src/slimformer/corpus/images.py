"""Images without labels: a folder, a zip file or idx files as an endless stream."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.corpus.source import SourceFile, visible_files
from slimformer.corpus.stream import Stream
from slimformer.errors import DataError
from slimformer.files import as_path, open_file
from slimformer.tasks.features import StackingCollator, TensorCollator
from slimformer.tasks.images import ImageTransform
from slimformer.tasks.readers.idx import ImageArray, read_idx_array
from slimformer.tasks.readers.images import IMAGE_SUFFIXES, ImageFile, is_image_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image

    from slimformer.tasks.features import Inputs

_logger = logging.getLogger("slimformer.corpus")
#: Images that are decoded when a corpus is opened, spread over all of it.
CHECKED = 100


class ImageCorpus:
    """Images, decoded when they are asked for.

    Args:
        images: The images, in order.
        files: The files they lie in.
    """

    def __init__(self, images: Sequence[ImageFile | ImageArray], files: Sequence[SourceFile]) -> None:
        self.images = images
        self.files = files

    def __len__(self) -> int:
        return len(self.images)

    def digest(self) -> str:
        """A hash that changes when the images do: of all names and sizes, and both ends of some of the files."""
        summed = hashlib.sha256(str(len(self)).encode())
        sampled = set(_spread(len(self.files)))
        for index, file in enumerate(self.files):
            summed.update(b"".join(file.identity()) if index in sampled else file.name_and_size())
        return summed.hexdigest()

    def stream(self, processor: Any = None, size: int = 224, *, seed: int = 0) -> ImageStream:
        """Examples of pixels, in a new order each epoch, without end.

        Args:
            processor: The model's image processor; None for [-1, 1] at `size` pixels a side.
            size: Used without a processor.
            seed: What the order depends on.
        """
        return ImageStream(self, ImageTransform.of(processor, size), seed)


class ImageStream(Stream):
    """Examples `{"pixel_values"}` of an image corpus."""

    def __init__(self, corpus: ImageCorpus, transform: ImageTransform, seed: int) -> None:
        if seed < 0:
            raise DataError(f"seed `{seed}` is negative; give 0 or more")
        self.corpus = corpus
        self._transform = transform
        self._seed = seed
        self._order: tuple[int, NDArray[Any]] | None = None

    def epoch_size(self) -> int:
        """Images of the corpus."""
        return len(self.corpus)

    def collator(self) -> TensorCollator:
        """Stacks images, which are all of one size."""
        return TensorCollator(StackingCollator())

    def _example(self, number: int) -> Inputs:
        epoch, index = divmod(number, len(self.corpus))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(len(self.corpus))
        return {"pixel_values": self._transform(self._image(int(self._order[1][index])))}

    def _image(self, index: int) -> Image:
        """An image; where it cannot be read, the next one that can, because a run of days must not end there."""
        for step in range(CHECKED):
            image = self.corpus.images[(index + step) % len(self.corpus)]
            try:
                return image.open()
            except DataError as error:
                _logger.warning("%s; the image after it is taken instead", error)
        raise DataError(
            f"{CHECKED} images one after another cannot be read, the last of them `{image}`; copy them again"
        )


def open_images(paths: str | Path | Sequence[str | Path]) -> ImageCorpus:
    """Open folders of images, zip files of images and MNIST's idx files; labels are not looked at.

    Some images spread over the corpus are decoded to see that they can be read.

    Args:
        paths: One path or several; of a folder, everything below it that is not hidden.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    images: list[ImageFile | ImageArray] = []
    files: list[SourceFile] = []
    for path in given:
        for file in _files(as_path(path)):
            files.append(file)
            images += _images_in(file.path)
    if not images:
        raise DataError(
            f"{', '.join(f'`{path}`' for path in given) or 'no path'} holds no images; give folders of "
            f"{', '.join(sorted(IMAGE_SUFFIXES))} files, zip files of them or MNIST's idx files"
        )
    for index in _spread(len(images)):
        images[index].open()
    return ImageCorpus(images, files)


def _files(path: Path) -> Iterator[SourceFile]:
    """The files of images a path stands for."""
    if path.is_dir():
        for file in visible_files(path):
            if file.suffix.lower() in IMAGE_SUFFIXES or file.suffix.lower() == ".zip" or _is_idx(file):
                yield SourceFile(file, file.relative_to(path).as_posix())
    elif not path.exists():
        raise DataError(f"nothing at `{path}`; give an image folder, a zip file or idx files")
    else:
        yield SourceFile(path, path.name)


def _images_in(path: Path) -> Iterator[ImageFile | ImageArray]:
    if path.suffix.lower() == ".zip":
        for member in _members(path):
            yield ImageFile(str(path), member)
    elif _is_idx(path):
        for number, pixels in enumerate(read_idx_array(path, 3), start=1):
            yield ImageArray(pixels, f"{path} image {number}")
    elif path.suffix.lower() in IMAGE_SUFFIXES:
        yield ImageFile(str(path))
    else:
        raise DataError(f"`{path}` is no image, no zip file and no idx file; give one of these, or a folder of images")


def _members(path: Path) -> list[str]:
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as packed:
            names = packed.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"`{path}` is not a zip file that can be read: {reason}; copy it again") from error
    return sorted(name for name in names if is_image_name(name))


def _is_idx(path: Path) -> bool:
    return "idx3" in path.name


def _spread(count: int) -> range:
    return range(0, count, max(1, count // CHECKED))
