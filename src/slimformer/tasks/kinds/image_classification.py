"""Images with one label each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.collators import StackingCollator
from slimformer.tasks.columns import LABELS, Columns, guess_one
from slimformer.tasks.features import Features, Inputs
from slimformer.tasks.images import ImageTransform
from slimformer.tasks.kinds.kind import Kind, Rename
from slimformer.tasks.labels import label_text
from slimformer.tasks.metrics.classification import classification_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class ImageClassification(Kind):
    """Image classification; pixels are read and scaled when an item is asked for."""

    name = "image-classification"
    head = "AutoModelForImageClassification"
    metrics = ("accuracy", "f1_macro", "f1_micro", "matthews")

    def guess_text(self, found: SplitRows, label: str | None) -> tuple[str, ...]:
        """The column of the images."""
        return (guess_one(found, ("image", "img", "pixels"), "image", "text_column"),)

    def guess_label(self, found: SplitRows) -> str:
        """The column of the classes."""
        return guess_one(found, (*LABELS, "fine_label"), "label")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One image."""
        assert columns.label is not None
        image = row.values[columns.text[0]]
        if not hasattr(image, "open") or isinstance(image, str):
            image = _in_memory(image, row)
        return [{"image": image, "label": rename(label_text(row.values[columns.label], row, columns.label))}]

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """The head's labels."""
        return {**super().config_kwargs(labels), "problem_type": "single_label_classification"}

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Items that read and scale their image when asked for; `max_length` is the side without a processor."""
        inputs = [{"image": example["image"], "labels": example["label"]} for example in split]
        return Features(inputs, transform=_ToPixels(ImageTransform.of(processor, max_length)))

    def collator(self, processor: Any) -> StackingCollator:
        """Stacks images, which are all of one size."""
        return StackingCollator()

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare classes."""
        truth = np.array([example["label"] for example in split])
        return classification_metrics(truth, np.asarray(predictions).argmax(-1), len(labels or ()), metrics)


@dataclass(frozen=True)
class _ToPixels:
    transform: ImageTransform

    def __call__(self, inputs: Inputs, index: int, epoch: int) -> Inputs:
        return {"pixel_values": self.transform(inputs["image"].open()), "labels": inputs["labels"]}


def _in_memory(image: Any, row: Row) -> Any:
    """An image of a Hub data set, which comes decoded."""
    from PIL.Image import Image

    from slimformer.tasks.readers.idx import ImageArray

    if not isinstance(image, Image):
        raise DataError(f"{row.at()}: `{str(image)[:40]}` is not an image; give an image folder, a zip or idx files")
    return ImageArray(np.asarray(image.convert("RGB")), row.at())
