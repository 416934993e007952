"""The curvature of the loss around a model: largest eigenvalues of the Hessian, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.report import Figure, Finding, Series, curves
from slimformer.views.attention import use_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    Parts = tuple[Tensor, ...]


def largest_eigenvalue(
    loss: Tensor, parameters: Sequence[Tensor], iterations: int = 20, seed: int = 0, tolerance: float = 1e-3
) -> float:
    """Largest eigenvalue of a loss's Hessian, the curvature of the steepest valley through this point.

    The Lanczos method on Hessian-vector products (https://doi.org/10.6028/jres.045.026) meets both ends of the spectrum
    at once, so that a steeper ridge hides no valley. It keeps three vectors and a small tridiagonal matrix, whose
    largest eigenvalue is the estimate. Vectors are not made orthogonal to all earlier ones: what rounding loses that
    way repeats eigenvalues that were met already and moves none beyond the ends of the spectrum.

    Args:
        loss: A number with a graph that can be differentiated twice.
        parameters: What it is differentiated by; those it does not depend on count as flat.
        iterations: Products at most.
        seed: Of the vector to start with.
        tolerance: Relative error, as bounded by the residual, below which the value is good enough.
    """
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None and g.requires_grad]
    if not used:
        return 0.0
    weights, slopes = zip(*used, strict=True)

    def times(vector: Parts) -> Parts:
        product = torch.autograd.grad(slopes, weights, vector, retain_graph=True, allow_unused=True)
        return tuple(
            torch.zeros_like(each) if part is None else part for part, each in zip(product, vector, strict=True)
        )

    generator = torch.Generator().manual_seed(seed)
    start = tuple(torch.randn(weight.shape, generator=generator).to(weight) for weight in weights)
    return _top_of_spectrum(times, start, iterations, tolerance)


def hessian_spectrum(
    models: dict[str, nn.Module],
    batches: Sequence[dict[str, Any]],
    parameters: dict[str, Sequence[Tensor]] | None = None,
    iterations: int = 20,
) -> Finding[dict[str, list[float]]]:
    """Largest eigenvalue of the Hessian of the labels' loss for each batch, for some models.

    A flat surface has small values. Quantized weights count through their straight-through gradients.

    Args:
        models: Models by name.
        batches: Batches with labels.
        parameters: What to look at, by the models' names; by default all weights.
        iterations: Products for each batch at most.
    """
    data: dict[str, list[float]] = {}
    for name, model in models.items():
        # The attention of PyTorch cannot be differentiated twice; ours can.
        before, was_training = use_attention(model), model.training
        model.eval()
        chosen = list((parameters or {}).get(name) or [each for each in model.parameters() if each.requires_grad])
        try:
            data[name] = [largest_eigenvalue(model(**batch).loss, chosen, iterations) for batch in batches]
        finally:
            model.train(was_training)
            if before is not None:
                use_attention(model, before)
    lines = [Series(name, list(range(len(values))), sorted(values)) for name, values in data.items()]
    figure = Figure("Curvature of the loss", curves([("largest eigenvalue", lines)], x_label="batch, sorted by value"))
    return Finding(data, figure)


def _top_of_spectrum(times: Callable[[Parts], Parts], start: Parts, iterations: int, tolerance: float) -> float:
    """Largest eigenvalue of the symmetric matrix that `times` multiplies with."""
    precision = torch.finfo(start[0].dtype).eps
    vector = _scaled(start, 1 / _dot(start, start) ** 0.5)
    before, beta = _scaled(start, 0.0), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    value = 0.0
    for _ in range(iterations):
        product = times(vector)
        alpha = _dot(product, vector)
        rest = tuple(
            part - alpha * here - beta * last for part, here, last in zip(product, vector, before, strict=True)
        )
        diagonal.append(alpha)
        beta = _dot(rest, rest) ** 0.5
        small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        small += torch.diag(torch.tensor(beside, dtype=torch.float64), 1)
        values, vectors = torch.linalg.eigh(small, UPLO="U")
        value, scale = float(values[-1]), float(values.abs().max())
        # Some eigenvalue lies as near as the residual is long.
        if beta * abs(float(vectors[-1, -1])) <= max(tolerance * abs(value), precision * scale):
            break
        beside.append(beta)
        before, vector = vector, _scaled(rest, 1 / beta)
    return value


def _dot(one: Parts, other: Parts) -> float:
    return float(sum((a * b).sum(dtype=torch.float64) for a, b in zip(one, other, strict=True)))


def _scaled(parts: Parts, factor: float) -> Parts:
    return tuple((part * factor).detach() for part in parts)
