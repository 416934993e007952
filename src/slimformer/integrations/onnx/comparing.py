"""Running a file in ONNX Runtime and measuring how far its answers are from a model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.errors import ArtifactError, DataError
from slimformer.integrations.onnx.exporting import Difference
from slimformer.runtime.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.integrations.onnx.probing import Batch

Answers = dict[str, Tensor]
#: Outputs with one value for each token; others of two axes have one row for each example.
_SPANS = frozenset({"start_logits", "end_logits"})


def run(path: Path, batches: Sequence[Batch]) -> list[Answers]:
    """What the model in a file answers to batches.

    Raises:
        ArtifactError: Where ONNX Runtime does not load or run it.
    """
    try:
        session = OnnxSession(path, torch.get_num_threads())
        outputs = [session.run({name: value.numpy() for name, value in batch.items()}) for batch in batches]
    except (ArtifactError, DataError) as error:
        raise ArtifactError(
            f"the exported model does not run: {error.reason}; nothing was written, install the version of onnxruntime "
            "that the extra `onnx` asks for"
        ) from error
    return [{name: torch.from_numpy(array) for name, array in arrays.items()} for arrays in outputs]


def check_finite(batches: Sequence[Batch], answers: Sequence[Answers], whose: str) -> None:
    """Refuse answers that are no numbers; places of padding do not count."""
    for batch, given in zip(batches, answers, strict=True):
        for name, values in given.items():
            if not bool(torch.isfinite(_real(name, values, batch.get("attention_mask"))).all()):
                raise ArtifactError(f"{whose} gives nan or infinity in `{name}`; nothing was written, train it again")


def difference(batches: Sequence[Batch], expected: Sequence[Answers], found: Sequence[Answers]) -> Difference:
    """How far answers are from those expected; places of padding do not count.

    Raises:
        ArtifactError: Where an answer is no number.
    """
    check_finite(batches, found, "the exported model")
    largest = relative = total = 0.0
    count = same = decisions = 0
    for name in expected[0]:
        apart, reach = [], []
        for batch, wanted, got in zip(batches, expected, found, strict=True):
            mask = batch.get("attention_mask")
            apart.append((_real(name, wanted[name], mask) - _real(name, got[name], mask)).abs())
            reach.append(_real(name, wanted[name], mask).abs().max())
            ours, theirs = _decisions(name, wanted[name], mask), _decisions(name, got[name], mask)
            same += int((ours == theirs).sum())
            decisions += ours.numel()
        values = torch.cat([each.flatten() for each in apart]).double()
        largest = max(largest, float(values.max()))
        relative = max(relative, float(values.max() / max(reach).clamp(min=1e-12)))
        total, count = total + float(values.sum()), count + values.numel()
    examples = sum(len(next(iter(batch.values()))) for batch in batches)
    return Difference(largest, total / count, relative, same / decisions if decisions else None, examples)


def _per_token(name: str, values: Tensor, mask: Tensor | None) -> bool:
    return mask is not None and mask.dim() == 2 and (name in _SPANS or values.dim() == 3)


def _real(name: str, values: Tensor, mask: Tensor | None) -> Tensor:
    """The values of an output that belong to no padding."""
    return values[mask.bool()] if mask is not None and _per_token(name, values, mask) else values


def _decisions(name: str, values: Tensor, mask: Tensor | None) -> Tensor:
    """What an output decides for: a class, a token, an end of a span; empty where it is no choice."""
    if not name.endswith("logits") or values.shape[-1] < 2:
        return values.new_empty(0)
    if name in _SPANS and mask is not None:
        return values.masked_fill(~mask.bool(), -torch.inf).argmax(dim=-1)
    return _real(name, values, mask).argmax(dim=-1).flatten()
