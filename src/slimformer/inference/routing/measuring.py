"""Making routes of an elastic model, and measuring what they do on a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.anatomy import Anatomy
from slimformer.counts import check_count
from slimformer.errors import ConfigError, SizeError
from slimformer.inference.bench import possible_shapes, time_forward
from slimformer.inference.door import open_model
from slimformer.inference.evaluation import prepare_split
from slimformer.inference.onnx import onnx_file, refuse_flags
from slimformer.inference.routing.cascade import Outcomes, calibrate, compare_with_random
from slimformer.inference.routing.routes import ROUTED, Cascade, LatencyRoute, chosen_route, confidences
from slimformer.inference.runners import SizedRunner, TorchRunner
from slimformer.sizes import Costs, Elastic, is_elastic

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from slimformer.inference.door import OpenModel
    from slimformer.inference.evaluation import PreparedSplit
    from slimformer.inference.routing.routes import Confidence
    from slimformer.inference.runners import Array
    from slimformer.tasks.options import TaskOptions


#: How often the sizes take turns while they are timed.
ROUNDS = 3


def measure_outcomes(prepared: PreparedSplit, by: Confidence = "margin", batch_size: int = 32) -> Outcomes:
    """Let every size answer a split."""
    kind, model = prepared.data.kind, prepared.in_torch.model
    if not kind.chooses:
        raise ConfigError(f"{kind.name} chooses no class, so no answer is more sure than another; route by latency")
    elastic = Elastic.of(_elastic(prepared.in_torch))
    truth = np.array([example["label"] for example in prepared.data[prepared.split]])
    runner = TorchRunner(model, kind)
    confidence, correct = [], []
    for name in elastic.names:
        logits = prepared.outputs(SizedRunner(runner, elastic, name), batch_size)["logits"]
        confidence.append(confidences(logits, by))
        correct.append(logits.argmax(-1) == truth)
    return Outcomes(
        elastic.names, relative_costs(model, mean_length(prepared)), np.stack(confidence), np.stack(correct)
    )


def relative_costs(model: Any, length: int) -> Array:
    """FLOPs of every size for a text of some tokens, of the largest's."""
    elastic, costs = Elastic.of(model), Costs.of(model, "flops", length)
    totals = np.array([costs.total(elastic.allocation(name)) for name in elastic.names], dtype=np.float64)
    shares: Array = totals / totals[-1]
    return shares


def calibrate_route(
    name: str | Path,
    options: TaskOptions,
    split: str = "dev",
    *,
    compute: float | None = None,
    accuracy: float | None = None,
    confidence: Confidence = "margin",
    batch_size: int = 32,
    check: bool = True,
) -> tuple[Cascade, dict[str, Any]]:
    """Calibrate a cascade of an elastic artifact on a split that its training has not seen.

    Args:
        name: The artifact.
        options: Task and data; what is not given is what it was trained with.
        split: The held-out split.
        compute: Mean FLOPs of an answer at most, of the largest size's.
        accuracy: Share of the rows to be right at least; give this or `compute`.
        confidence: The best probability, or its margin over the second.
        batch_size: Items per forward; changes speed and memory only.
        check: Whether the artifact must answer as recorded at saving.

    Returns:
        The cascade, and what it reaches on that split beside each size alone.
    """
    check_count("batch-size", batch_size)
    prepared = prepare_split(name, options, split, check=check, keep_sizes=True)
    outcomes = measure_outcomes(prepared, confidence, batch_size)
    cascade = calibrate(outcomes, compute=compute, accuracy=accuracy, by=confidence)
    right, cost = outcomes.of([outcomes.sizes.index(size) for size in cascade.sizes]).score(cascade.thresholds)
    alone = zip(outcomes.sizes, outcomes.correct.mean(1), outcomes.costs, strict=True)
    measured = {
        "accuracy": right,
        "compute": cost,
        "sizes": {size: {"accuracy": float(share), "compute": float(each)} for size, share, each in alone},
    }
    return cascade.model_copy(update={"fingerprint": _fingerprint(prepared.in_torch)}), measured


def evaluate_routed(
    name: str | Path,
    options: TaskOptions,
    split: str = "dev",
    batch_size: int = 32,
    *,
    route: str | Path,
    size: str | None = None,
    **loading: Any,
) -> dict[str, Any]:
    """Measure an elastic artifact on a task, each request at the size that a route chooses.

    Args:
        name: The artifact.
        options: Task and data; what is not given is what it was trained with.
        split: Which split; for an honest number another one than the route was calibrated on.
        batch_size: Items per forward; changes speed and memory only.
        route: A file of `slimformer route`.
        size: Not with a route, which chooses it.
        loading: What else `open_model` takes.

    Returns:
        As `evaluate_on_task`, with `route`: the share of rows that each size answered and, of a cascade, its compute
        and what it gains over random routing.
    """
    check_count("batch-size", batch_size)
    if onnx_file(name) is not None:
        refuse_flags(name, route=route)
    chosen = chosen_route(route, size)
    assert chosen is not None
    prepared = prepare_split(name, options, split, keep_sizes=True, **loading)
    kind = prepared.data.kind
    outputs = prepared.outputs(chosen.open(prepared.in_torch, TorchRunner(prepared.model, kind), kind), batch_size)
    routed = outputs.pop(ROUTED)
    shares = np.bincount(routed, minlength=len(chosen.sizes)) / len(routed)
    report: dict[str, Any] = {"by": chosen.by, "shares": dict(zip(chosen.sizes, shares.tolist(), strict=True))}
    if isinstance(chosen, Cascade):
        truth = np.array([example["label"] for example in prepared.data[split]])
        right = outputs["logits"].argmax(-1) == truth
        outcomes = measure_outcomes(prepared, chosen.confidence, batch_size)
        report |= compare_with_random(outcomes, right, chosen.spent(routed))
    return {**prepared.summary(prepared.metrics(outputs)), "route": report}


def measure_latencies(
    model: Any, budget_ms: float, lengths: Iterable[int], seconds: float = 0.5, warm_up: int = 3
) -> LatencyRoute:
    """Time every size of an elastic model at batch 1, and route by a budget.

    Args:
        model: The elastic model.
        budget_ms: Milliseconds that a request may take.
        lengths: Tokens of the texts that are timed; a vision model has one length whatever is given.
        seconds: Time to spend on each size and length.
        warm_up: Runs before the clock starts.
    """
    elastic = Elastic.of(model)
    ordered = sorted({length for _, length in possible_shapes(model, [(1, length) for length in lengths])})
    rounds = np.zeros((ROUNDS, len(elastic.names), len(ordered)))
    # In turns, so that whatever else the machine does for a while falls on all sizes alike.
    for turn in rounds:
        for row, name in zip(turn, elastic.names, strict=True):
            with elastic.at(name):
                row[:] = [time_forward(model, 1, length, seconds / ROUNDS, warm_up).p50_ms for length in ordered]
    latencies = np.median(rounds, axis=0).round(3).tolist()
    return LatencyRoute(budget_ms=budget_ms, sizes=list(elastic.names), lengths=ordered, latency_ms=latencies)


def latency_route(name: str | Path, budget_ms: float, lengths: Iterable[int], check: bool = True) -> LatencyRoute:
    """Time every size of an elastic artifact, and route by a budget.

    Args:
        name: The artifact.
        budget_ms: Milliseconds that a request may take.
        lengths: Tokens of the texts that are timed.
        check: Whether the artifact must answer as recorded at saving.
    """
    opened = open_model(name, keep_sizes=True, processor=False, check=check)
    route = measure_latencies(_elastic(opened), budget_ms, lengths)
    return route.model_copy(update={"fingerprint": _fingerprint(opened)})


def _elastic(opened: OpenModel) -> Any:
    """A model that was opened, if it has sizes."""
    if not is_elastic(opened.model):
        raise SizeError(
            f"`{opened.source.name}` has one size only, and a route chooses among several; give an artifact of "
            "`slimformer elastic`"
        )
    return opened.model


def mean_length(prepared: PreparedSplit) -> int:
    """Tokens of an item in the mean; patches and the first token of images."""
    model = prepared.in_torch.model
    if Anatomy.of(model).patch_embedding is not None:
        return possible_shapes(model, [(1, 1)])[0][1] + 1
    lengths = prepared.features.lengths
    return max(1, round(sum(lengths) / len(lengths)))


def _fingerprint(opened: OpenModel) -> str | None:
    manifest = opened.source.manifest
    return None if manifest is None else manifest.model.fingerprint
