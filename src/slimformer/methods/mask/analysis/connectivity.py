"""Whether two solutions lie in one valley: accuracy along a line and along a trained curve (Fig. 6 and 7)."""

from __future__ import annotations

import copy
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from slimformer import artifact
from slimformer.artifact.storage.mask import assemble
from slimformer.errors import ArtifactError, ConfigError
from slimformer.inference.source import is_artifact
from slimformer.methods.mask.measuring import Measure
from slimformer.report import Figure, Finding, Series, curves
from slimformer.tasks.options import TaskOptions
from slimformer.train import Loss, TrainingOptions, train

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
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
    bends: int = 3,
    training: TrainingOptions | None = None,
    points: int = 11,
    split: str = "dev",
    **options: Any,
) -> Finding[dict[str, Any]]:
    """Train the bends of a Bézier curve between two solutions, and measure along it.

    `φ(t) = Σ_k C(n, k) (1 - t)^(n-k) t^k·θ_k` with the solutions as θ_0 and θ_n, and n - 1 bends between them that are
    trained: each step draws a t and follows the task's loss at φ(t) (arXiv 1802.10026). The curve starts as the
    straight line.

    Args:
        first: An artifact, t = 0.
        second: An artifact of the same task and class, t = 1.
        data: The task's data.
        bends: Bends that are trained, each of the size of the model.
        training: How to train them; by default 200 steps at 1e-4.
        points: Models along the curve, the ends included.
        split: Which split to measure on.
        options: Fields of `TaskOptions`, where they differ from what the first was trained with.
    """
    if bends < 1:
        raise ConfigError(f"`bends` is `{bends}`; give 1 or more, or measure the straight line with `linear_paths`")
    training = training or TrainingOptions(max_steps=200, lr=1e-4)
    one, other = _pair(first, second)
    start, end = _weights(one), _weights(other)
    task = _options(data, options)
    learnt = Measure.of(first, task, "train")
    curve = Curve(one, start, end, bends)
    with tempfile.TemporaryDirectory(prefix="slimformer-") as folder:
        collate = learnt.data.collator(learnt.processor)
        train(curve, training, learnt.features, collate, Path(folder), objective=_loss_at_random, quiet=True)
    measure = Measure.of(first, task, split)
    places = [number / (points - 1) for number in range(points)]
    with torch.no_grad():
        curved = [_value(one, curve.weights(place), measure) for place in places]
    straight = [
        _value(one, {key: torch.lerp(start[key], end[key], place) for key in start}, measure) for place in places
    ]
    lines = [Series("curve", places, curved), Series("straight line", places, straight)]
    svg = curves([(f"{measure.metric} on {split}", lines)], x_label="t")
    values = {"metric": measure.metric, "bends": bends, "t": places, "curve": curved, "line": straight}
    caption = f"A curve with {bends} trained bends between two solutions."
    return Finding(values, Figure("Along a trained curve", svg, caption))


class Curve(nn.Module):
    """A Bézier curve through the weights of a model, whose bends are its parameters.

    Args:
        model: The model; copies of it hold the bends.
        start: The weights at t = 0.
        end: The weights at t = 1.
        bends: How many bends.
    """

    def __init__(self, model: nn.Module, start: Weights, end: Weights, bends: int) -> None:
        super().__init__()
        self.start, self.end = start, end
        self.bends = nn.ModuleList(copy.deepcopy(model) for _ in range(bends))
        with torch.no_grad():
            # Evenly spaced on the line, the bends make it the straight line, run through at an even pace.
            for number, bend in enumerate(self.bends, start=1):
                for name, parameter in bend.named_parameters():
                    parameter.copy_(torch.lerp(start[name], end[name], number / (bends + 1)))
                    parameter.requires_grad_(True)

    def weights(self, place: float) -> Weights:
        """The weights at t = `place`."""
        bends: list[Weights] = [dict(bend.named_parameters()) for bend in self.bends]
        controls = [self.start, *bends, self.end]
        return {name: bezier([each[name] for each in controls], place) for name in self.start}

    def forward(self, place: float, **inputs: Any) -> Any:
        """The model's outputs at t = `place`."""
        return functional_call(self.bends[0], self.weights(place), kwargs=inputs)


def bezier(controls: Sequence[Tensor], place: float) -> Tensor:
    """The point at t = `place` of the Bézier curve with these control points, by Bernstein's polynomials."""
    degree = len(controls) - 1
    shares = [math.comb(degree, k) * (1 - place) ** (degree - k) * place**k for k in range(degree + 1)]
    total = shares[0] * controls[0]
    for share, control in zip(shares[1:], controls[1:], strict=True):
        total = total + share * control
    return total


def _loss_at_random(model: nn.Module, inputs: dict[str, Any]) -> Loss:
    return Loss(model(float(torch.rand(())), **inputs).loss)


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


def _options(data: str | Path, options: dict[str, Any]) -> TaskOptions:
    return TaskOptions.make({**options, "data": data})
