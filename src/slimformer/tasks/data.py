"""The data of a task, loaded and checked: what a trainer and an evaluation ask it for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.tasks.collators import TensorCollator
from slimformer.tasks.metrics.choosing import SMALLER_IS_BETTER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.tasks.features import Features
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.preset import Preset
    from slimformer.tasks.splits import Split


@dataclass(frozen=True)
class TaskData:
    """Splits of examples, with everything that turns them into inputs and outputs into metrics.

    Args:
        preset: The task.
        kind: What the model has to do.
        splits: The splits that were asked for.
        labels: The labels in the order of the head; None where there are none.
        notes: What was done to the data that a user should know, in words.
    """

    preset: Preset
    kind: Kind
    splits: Mapping[str, Split]
    labels: list[str] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured."""
        return self.preset.metrics or self.kind.metric_names(self.labels)

    @property
    def primary_metric(self) -> str:
        """The metric that chooses between models."""
        return self.metrics[0]

    @property
    def greater_is_better(self) -> bool:
        """Whether more of the primary metric is better."""
        return self.primary_metric not in SMALLER_IS_BETTER

    def __len__(self) -> int:
        return sum(len(split) for split in self.splits.values())

    def __getitem__(self, split: str) -> Split:
        try:
            return self.splits[split]
        except KeyError:
            raise DataError(
                f"split `{split}` was not loaded; loaded: {', '.join(self.splits)}; name it when loading the task"
            ) from None

    def model_class(self) -> Any:
        """The Transformers class with the head that fits, such as `AutoModelForSequenceClassification`."""
        import transformers

        return getattr(transformers, self.kind.head)

    def config_kwargs(self) -> dict[str, Any]:
        """What `from_pretrained` has to be told for the head: number and names of the labels, kind of problem."""
        return self.kind.config_kwargs(self.labels)

    def check_head(self, outputs: int) -> None:
        """Refuse a head with fewer outputs than there are labels, naming the first row it has no output for."""
        if self.labels is None or outputs >= len(self.labels):
            return
        for split in self.splits.values():
            for index, example in enumerate(split):
                largest = max(self.kind.labels_of(example), default=-1)
                if largest >= outputs:
                    raise DataError(
                        f"{split.at(index)}: label `{self.labels[largest]}` is number {largest + 1} of "
                        f"{len(self.labels)}, but the model's head has {outputs} outputs; "
                        "start from a model without a head"
                    )
        raise DataError(
            f"the data has {len(self.labels)} labels, but the model's head has {outputs} outputs; "
            "start from a model without a head"
        )

    def prepare(self, split: str, processor: Any, max_length: int | None = None, seed: int = 0) -> Features:
        """Turn a split into inputs, once and the same every time.

        Args:
            split: Which split.
            processor: The tokenizer; for images the image processor, or None for [-1, 1] at `max_length` pixels a side.
            max_length: Tokens to cut to; unless given the preset's own, or the tokenizer's limit if that is less.
            seed: What random masks depend on; nothing else is random.
        """
        longest = getattr(processor, "model_max_length", self.preset.max_length)
        length = min(self.preset.max_length, longest) if max_length is None else max_length
        return self.kind.features(self[split], processor, length, seed)

    def collator(self, processor: Any) -> TensorCollator:
        """What makes batches of inputs for a model in torch: it pickles, and pads to the longest of a batch."""
        return TensorCollator(self.kind.collator(processor))

    def items(self, batch: Mapping[str, Any]) -> int:
        """What the loss of a batch is a mean over: examples, or tokens that have a label."""
        return self.kind.items(batch)

    def outputs(self, outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        """Shrink a model's outputs for a batch, labels included, to what `compute_metrics` needs of them.

        The logits of a language model become three numbers an item, hidden states one vector; others pass unchanged.
        """
        arrays = tuple(self.kind.outputs(outputs, batch).values())
        return arrays if len(arrays) > 1 else arrays[0]

    def compute_metrics(self, split: str, features: Features, predictions: Any) -> dict[str, float]:
        """Measure a model's outputs on a prepared split.

        Args:
            split: Which split.
            features: What `prepare` gave for it.
            predictions: Outputs of the model for each item of `features`, in order: logits as an array, a pair of
                arrays (starts, ends) for question answering, what `outputs` gave for language models, embeddings
                for retrieval.
        """
        _check_predictions(split, features, predictions)
        return self.kind.score(self[split], features, predictions, self.labels, self.metrics)


def _check_predictions(split: str, features: Features, predictions: Any) -> None:
    import numpy as np

    for part in predictions if isinstance(predictions, tuple) else (predictions,):
        array = np.asarray(part)
        if len(array) != len(features):
            raise DataError(
                f"{len(array)} predictions for the {len(features)} items of `{split}`; give one for each, in order"
            )
        if np.isnan(array).any():
            row = int(np.flatnonzero(np.isnan(array).reshape(len(array), -1).any(-1))[0])
            raise DataError(
                f"prediction {row} of `{split}` is not a number; lower the learning rate or check the weights"
            )
