"""The loss of a model on a few labelled examples, to tell its sizes apart without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.errors import SizeError
from slimformer.inference.evaluation import fitting_length, load_split

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from slimformer.inference.source import Source
    from slimformer.tasks.options import TaskOptions

#: Examples of one forward.
BATCH = 32


def calibration_loss(
    source: Source,
    model: PreTrainedModel,
    processor: Any,
    options: TaskOptions,
    split: str = "train",
    examples: int = 256,
) -> Callable[[], float]:
    """A function that measures a model's own loss on some examples, at the size in use.

    Args:
        source: What the model was opened from.
        model: The model.
        processor: Its tokenizer or image processor.
        options: Task and data; what is not given is what the artifact was trained with.
        split: Where the examples are taken from.
        examples: How many, spread evenly over the split.
    """
    options, data = load_split(source, options, split)
    features = data.prepare(split, processor, fitting_length(options.max_length, data, processor, model.config))
    collate = data.collator(processor)
    count = min(examples, len(features))
    chosen = [features[number * len(features) // count] for number in range(count)]
    batches = [collate(chosen[start : start + BATCH]) for start in range(0, count, BATCH)]
    device = next(model.parameters()).device

    @torch.inference_mode()
    def loss() -> float:
        total = items = 0.0
        for batch in batches:
            outputs: Any = model(**{name: value.to(device) for name, value in batch.items()})
            if getattr(outputs, "loss", None) is None:
                raise SizeError(
                    f"a `{type(model).__name__}` gives no loss on task `{data.preset.name}`, so its blocks cannot be "
                    "compared; give a task its head was trained for, or choose by `--order`"
                )
            weight = data.kind.items(batch)
            total, items = total + float(outputs.loss) * weight, items + weight
        return total / max(items, 1)

    return loss
