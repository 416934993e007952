"""Whether two solutions lie in one valley: accuracy along a line and along a trained curve (Fig. 6 and 7)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call

from slimformer import artifact
from slimformer.artifact.storage.mask import assemble
from slimformer.errors import ArtifactError
from slimformer.inference.door import is_artifact
from slimformer.methods.mask.measuring import Measure
from slimformer.report import Figure, Finding, Series, curves
from slimformer.tasks.options import TaskOptions
from slimformer.train import Loss, TrainingOptions, train

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    Weights = dict[str, Tensor]


def linear_paths(
    ends: Mapping[str, tuple[str | Path, str | Path]],
    data: str | Path,
    *,
    points: int = 11,
    split: str = "dev",
    **options: Any,
) -> Finding[dict[str, Any]]:
    """Measure models on the straight line `W0 + a(W1 - W0)` between two solutions.

    Args:
        ends: Name of a line → its two ends: artifacts of one task, or a plain base, which gets the other end's head.
        data: The task's data.
        points: Models along a line, the ends included.
        split: Which split to measure on.
        options: Fields of `TaskOptions`, where they differ from what the first artifact was trained with.
    """
    places = [number / (points - 1) for number in range(points)]
    values: dict[str, list[float]] = {}
    for name, (first, second) in ends.items():
        one, other = _pair(first, second)
        measure = Measure.of(second if is_artifact(second) else first, _options(data, options), split)
        start, end = _weights(one), _weights(other)
        values[name] = [
            _value(one, {key: torch.lerp(start[key], end[key], place) for key in start}, measure) for place in places
        ]
    lines = [Series(name, places, found) for name, found in values.items()]
    svg = curves([(f"{measure.metric} on {split}", lines)], x_label="share of the way from the first end to the second")
    caption = "Models on the straight line between two solutions."
    found = {"metric": measure.metric, "places": places, "values": values}
    return Finding(found, Figure("Along straight lines", svg, caption))


def bezier_path(
    first: str | Path,
    second: str | Path,
    data: str | Path,
    *,
    training: TrainingOptions | None = None,
    points: int = 11,
    split: str = "dev",
    **options: Any,
) -> Finding[dict[str, Any]]:
    """Train the middle θ of a curve with three bends between two solutions, and measure along it.

    `φ(t) = (1 - t)²·W0 + 2t(1 - t)·θ + t²·W1`; each step draws a t and follows the task's loss at φ(t). The curve
    starts as the straight line.

    Args:
        first: An artifact, t = 0.
        second: An artifact of the same task and class, t = 1.
        data: The task's data.
        training: How to train θ; by default 200 steps at 1e-4.
        points: Models along the curve, the ends included.
        split: Which split to measure on.
        options: Fields of `TaskOptions`, where they differ from what the first was trained with.
    """
    training = training or TrainingOptions(max_steps=200, lr=1e-4)
    one, other = _pair(first, second)
    start, end = _weights(one), _weights(other)
    given = _options(data, options)
    learnt = Measure.of(first, given, "train")
    middle = artifact.load(Path(first)).model
    with torch.no_grad():
        for name, parameter in middle.named_parameters():
            parameter.copy_((start[name] + end[name]) / 2)

    def objective(model: nn.Module, inputs: dict[str, Any]) -> Loss:
        place = float(torch.rand(()))
        at = {name: _bent(start[name], theta, end[name], place) for name, theta in model.named_parameters()}
        loss: Tensor = functional_call(model, at, kwargs=inputs).loss
        return Loss(loss)

    with tempfile.TemporaryDirectory(prefix="slimformer-") as folder:
        collate = learnt.data.collator(learnt.processor)
        train(middle, training, learnt.features, collate, Path(folder), objective=objective, quiet=True)
    measure = Measure.of(first, given, split)
    places = [number / (points - 1) for number in range(points)]
    bend = _weights(middle.eval())
    curved = [
        _value(one, {key: _bent(start[key], bend[key], end[key], place) for key in start}, measure) for place in places
    ]
    straight = [
        _value(one, {key: torch.lerp(start[key], end[key], place) for key in start}, measure) for place in places
    ]
    lines = [Series("curve", places, curved), Series("straight line", places, straight)]
    svg = curves([(f"{measure.metric} on {split}", lines)], x_label="t")
    found = {"metric": measure.metric, "t": places, "curve": curved, "line": straight}
    return Finding(found, Figure("Along a trained curve", svg, "A curve with three bends between two solutions."))


def _pair(first: str | Path, second: str | Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two models of one class; a plain base gets the head of the other."""
    if not is_artifact(first) and not is_artifact(second):
        raise ArtifactError(f"neither `{first}` nor `{second}` is an artifact; give at least one trained model")
    ends = [artifact.load(Path(end)).model if is_artifact(end) else None for end in (first, second)]
    one, other = (
        _with_head_of(base, trained, folder) if base is None and trained is not None else base
        for base, trained, folder in ((ends[0], ends[1], first), (ends[1], ends[0], second))
    )
    assert one is not None
    assert other is not None
    shapes = [{name: tuple(each.shape) for name, each in model.named_parameters()} for model in (one, other)]
    if shapes[0] != shapes[1]:
        raise ArtifactError(
            f"`{first}` is a {type(one).__name__} and `{second}` a {type(other).__name__} of other shapes; "
            "give two models of one task and size"
        )
    return one, other


def _with_head_of(_: None, trained: PreTrainedModel, base: str | Path) -> PreTrainedModel:
    model = assemble(base, type(trained), trained.config)
    inside = {name for name, _ in model.base_model.named_parameters(prefix=model.base_model_prefix)}
    head = {name: tensor for name, tensor in trained.state_dict().items() if name not in inside}
    model.load_state_dict(head, strict=False)
    return model


def _weights(model: nn.Module) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@torch.no_grad()
def _value(model: nn.Module, weights: Weights, measure: Measure) -> float:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    return measure.value(model)


def _bent(start: Tensor, bend: Tensor, end: Tensor, place: float) -> Tensor:
    return (1 - place) ** 2 * start + 2 * place * (1 - place) * bend + place**2 * end


def _options(data: str | Path, options: dict[str, Any]) -> TaskOptions:
    return TaskOptions.make({**options, "data": data})
