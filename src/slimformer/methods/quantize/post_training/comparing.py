"""How far a quantized model is from its float self, without any label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.methods.quantize.post_training.calibration import placed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from slimformer.methods.quantize.post_training.calibration import Batch


@dataclass(frozen=True)
class Answers:
    """What a model gave on some batches: hidden states, and the class or token it found likeliest where it has those.

    Args:
        batches: What it was asked.
        states: Its last hidden states, batch by batch.
        predictions: Numbers of the largest logits; None where there are none, or only one a row.
    """

    batches: Sequence[Batch]
    states: list[Tensor]
    predictions: list[Tensor | None]

    @classmethod
    def of(cls, model: nn.Module, batches: Sequence[Batch]) -> Answers:
        """Ask a model in eval mode."""
        answered = list(_ask(model, batches))
        return cls(batches, [states for states, _ in answered], [predictions for _, predictions in answered])

    def compare(self, model: nn.Module) -> dict[str, float]:
        """Ask another model the same.

        Returns:
            `error`, the squared differences of hidden states over their squares, and `agreement`, the share of
            predictions that are the same.
        """
        error = size = 0.0
        same = count = 0
        answered = _ask(model, self.batches)
        for expected, prediction, (states, other) in zip(self.states, self.predictions, answered, strict=True):
            error += float((states - expected).square().sum())
            size += float(expected.square().sum())
            if prediction is not None and other is not None:
                same += int((prediction == other).sum())
                count += prediction.numel()
        agreement = {"agreement": same / count} if count else {}
        return {"error": error / size if size else 0.0, **agreement}


@torch.no_grad()
def _ask(model: nn.Module, batches: Sequence[Batch]) -> Iterator[tuple[Tensor, Tensor | None]]:
    states: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        states.append(output[0])

    hook = Anatomy.of(model).base.register_forward_hook(keep)
    try:
        for batch in batches:
            output = model(**placed(batch, model))
            logits = output.get("logits")
            choice = None if logits is None or logits.shape[-1] < 2 else logits.argmax(dim=-1).cpu()
            yield states.pop().cpu(), choice  # another model may be elsewhere
    finally:
        hook.remove()
