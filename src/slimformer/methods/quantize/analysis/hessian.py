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

    Power iteration on Hessian-vector products finds the eigenvalue of largest magnitude. If that one is negative (the
    top of a ridge), the Hessian is shifted by it, and what is largest then is sought, as exactly as that one is known.

    Args:
        loss: A number with a graph that can be differentiated twice.
        parameters: What it is differentiated by; those it does not depend on count as flat.
        iterations: Products at most, of each of the two searches.
        seed: Of the vector to start with.
        tolerance: Relative change below which the value counts as found.
    """
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None and g.requires_grad]
    if not used:
        return 0.0
    weights, slopes = zip(*used, strict=True)

    def shifted_hessian(vector: Parts, shift: float) -> Parts:
        product = torch.autograd.grad(slopes, weights, vector, retain_graph=True, allow_unused=True)
        return tuple(
            -shift * each if part is None else part - shift * each for part, each in zip(product, vector, strict=True)
        )

    generator = torch.Generator().manual_seed(seed)
    start = _unit([torch.randn(weight.shape, generator=generator).to(weight) for weight in weights])
    value = _dominant_eigenvalue(lambda vector: shifted_hessian(vector, 0.0), start, iterations, tolerance)
    if value >= 0:
        return value
    return value + _dominant_eigenvalue(lambda vector: shifted_hessian(vector, value), start, iterations, tolerance)


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


def _dominant_eigenvalue(times: Callable[[Parts], Parts], vector: Parts, iterations: int, tolerance: float) -> float:
    """Eigenvalue of largest magnitude of the matrix that `times` multiplies with."""
    value = 0.0
    for _ in range(iterations):
        product = times(vector)
        found = float(sum((part * each).sum() for part, each in zip(product, vector, strict=True)))
        if not any(part.any() for part in product):
            return 0.0
        if abs(found - value) <= tolerance * abs(found):
            return found
        vector, value = _unit(product), found
    return value


def _unit(parts: Sequence[Tensor]) -> Parts:
    norm = torch.stack([part.square().sum() for part in parts]).sum().sqrt()
    return tuple((part / norm).detach() for part in parts)
