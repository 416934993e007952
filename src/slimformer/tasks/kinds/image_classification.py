"""Images with one label each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.columns import LABELS, Columns, guess_one, label_text
from slimformer.tasks.features import Collator, Features, Inputs, StackingCollator
from slimformer.tasks.images import ImageTransform
from slimformer.tasks.kinds.classification import OneLabel
from slimformer.tasks.kinds.kind import Kind, Rename
from slimformer.tasks.readers.idx import ImageArray
from slimformer.tasks.readers.images import ImageFile

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class ImageKind(Kind):
    """Whatever is done with labelled images; pixels are read and scaled when an item is asked for."""

    modality = "images"
    max_length = 224
    axes = ("batch",)
    fields = ("image",)
    request = 'the path of an image, or {"image": path}'

    def guess_text(self, rows: SplitRows, label: str | None) -> tuple[str, ...]:
        """The column of the images."""
        return (guess_one(rows, ("image", "img", "pixels"), "image", "text_column"),)

    def guess_label(self, rows: SplitRows) -> str:
        """The column of the classes."""
        return guess_one(rows, (*LABELS, "fine_label"), "label")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One image."""
        assert columns.label is not None
        image = row.values[columns.text[0]]
        if not hasattr(image, "open") or isinstance(image, str):
            image = _in_memory(image, row.at())
            if image is None:
                raise DataError(
                    f"{row.at()}: `{str(row.values[columns.text[0]])[:40]}` is not an image; give an image folder, a "
                    "zip or idx files"
                )
        return [{"image": image, "label": rename(label_text(row.values[columns.label], row, columns.label))}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Items that read and scale their image when asked for; `max_length` is the side without a processor."""
        inputs = [{"image": example["image"], "labels": example["label"]} for example in split]
        return Features(inputs, transform=_ToPixels(ImageTransform.of(processor, max_length)))

    def inputs(self, split: Split, processor: Any, max_length: int) -> Features:
        """The same without labels."""
        inputs = [{"image": example["image"]} for example in split]
        return Features(inputs, transform=_ToPixels(ImageTransform.of(processor, max_length)))

    def collator(self, processor: Any) -> Collator:
        """Stacks images, which are all of one size."""
        return StackingCollator()

    def encode(self, request: Any) -> Example:
        """A file, an image of Pillow, or anything with an `open()` that gives one."""
        image = request.get("image") if isinstance(request, Mapping) else request
        if isinstance(image, (str, Path)) and str(image).strip():
            image = ImageFile(str(image))
            if not _is_file(image.path):
                raise DataError(f"no image at `{image.path[:200]}`; check the path")
            image.check()
        else:
            image = _in_memory(image, "the request") or image
        if not callable(getattr(image, "open", None)):
            raise self.unfit(request)
        return {"image": image, "label": 0}


class ImageClassification(OneLabel, ImageKind):
    """Image classification."""

    name = "image-classification"
    head = "AutoModelForImageClassification"
    pipeline_tag = "image-classification"

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A head for images; DeiT's second one answers alike."""
        return cls() if "ForImageClassification" in architecture else None


@dataclass(frozen=True)
class _ToPixels:
    transform: ImageTransform

    def __call__(self, inputs: Inputs, index: int, epoch: int) -> Inputs:
        rest = {name: value for name, value in inputs.items() if name != "image"}
        return {"pixel_values": self.transform(inputs["image"].open()), **rest}


def _in_memory(image: Any, origin: str) -> ImageArray | None:
    """An image of Pillow, such as those of a Hub data set; None for anything else."""
    from PIL.Image import Image

    return ImageArray(np.asarray(image.convert("RGB")), origin) if isinstance(image, Image) else None


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # too long, or with a null byte
        return False
