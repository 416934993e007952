"""A file beside the model it was made from, on real examples: the same answers, how far apart, and how good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimformer.inference.onnx import OnnxRunner
from slimformer.integrations.onnx.exporting import Comparison
from slimformer.runtime.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slimformer.inference.evaluation import PreparedSplit
    from slimformer.inference.runners import Array


def compare(path: Path, prepared: PreparedSplit, batch_size: int = 32) -> Comparison:
    """Let a file and its source answer the same examples.

    Args:
        path: The file.
        prepared: The source, and a split of a task made ready for it.
        batch_size: Items per forward; changes speed and memory only.
    """
    kind = prepared.data.kind
    of_source = prepared.outputs(prepared.opened.runner(kind), batch_size)
    of_file = prepared.outputs(OnnxRunner(OnnxSession(path, torch.get_num_threads()), kind), batch_size)
    return Comparison(
        task=prepared.data.preset.name,
        split=prepared.split,
        examples=len(prepared.data[prepared.split]),
        agreement=_agreement(prepared, of_source, of_file),
        largest=max(float(np.abs(of_source[name] - of_file[name]).max()) for name in of_source),
        metrics=prepared.metrics(of_file),
        source_metrics=prepared.metrics(of_source),
    )


def _agreement(prepared: PreparedSplit, one: Mapping[str, Array], other: Mapping[str, Array]) -> float | None:
    """Share of examples with the same answer, numbers aside; None where an answer is nothing but numbers."""
    kind = prepared.data.kind
    if kind.pretraining or kind.embeds:
        return None
    first, second = (_decisions(prepared, outputs) for outputs in (one, other))
    if not any(first):
        return None
    return float(np.mean([answer == again for answer, again in zip(first, second, strict=True)]))


def _decisions(prepared: PreparedSplit, outputs: Mapping[str, Array]) -> list[Any]:
    data = prepared.data
    split, processor = data[prepared.split], prepared.opened.processor
    return [_decision(each) for each in data.kind.decode(split, prepared.features, outputs, data.labels, processor)]


def _decision(answer: Any) -> Any:
    """An answer without the numbers that only say how sure it is."""
    if isinstance(answer, dict):
        kept = {name: _decision(value) for name, value in answer.items()}
        return {name: value for name, value in kept.items() if value is not None and value != {}}
    if isinstance(answer, list):
        return [_decision(value) for value in answer]
    return None if isinstance(answer, float) else answer
