"""Weights that terms get while training: balanced by their gradients, or by the stage of the run.

What has to be remembered from step to step lies where checkpoints see it, in the model's state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.objectives.terms import Mean

#: Name of the module on the model while it trains.
NAME = "slimformer_progress"
#: Steps between two looks at the gradients.
EVERY = 50
#: How far a term that has fallen less than the other one is favoured.
CATCH_UP = 0.5
#: Bound on a weight and on its inverse.
LIMIT = 20.0


class Progress(nn.Module):
    """How terms of the loss are weighed; saved and resumed with the weights."""

    weights: Tensor
    first: Tensor

    def __init__(self, terms: int) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(terms))
        self.register_buffer("first", torch.zeros(terms))

    @classmethod
    def on(cls, model: nn.Module, terms: int) -> Progress:
        """Put a new one on a model."""
        progress = cls(terms)
        model.add_module(NAME, progress)
        return progress


def remove_progress(model: nn.Module) -> None:
    """Take it off again, once training is over."""
    if hasattr(model, NAME):
        delattr(model, NAME)


def rebalance(progress: Progress, means: Sequence[Mean], parameters: Sequence[Tensor]) -> None:
    """Weigh losses so that all pull at the parameters alike, and those that lag behind a little more.

    With gradient norms g and losses L, L₀ when first asked, the weights are `(L/L₀)^½ / g`, scaled to a geometric mean
    of 1, and move half of the way (in logarithms) each time. Costs one backward pass for each loss. Gradients are
    those of all processes together; of several accumulation steps the first one speaks for all.
    """
    losses = [mean.value for mean in means]
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together:
        counts = torch.tensor([mean.count for mean in means], device=losses[0].device)
        shares = counts / _mean_over_processes(counts.float()).clamp(min=1e-9)
        losses = [share * loss for share, loss in zip(shares, losses, strict=True)]
    norms = torch.stack([_norm(loss, parameters, together=together) for loss in losses])
    values = torch.stack([loss.detach().float() for loss in losses])
    if together:
        values = _mean_over_processes(values)
    if not bool((norms > 0).all() and (values > 0).all()):
        return  # a loss of 0 pulls at nothing
    started = bool(progress.first.any())
    if not started:
        progress.first.copy_(values)
    target = CATCH_UP * (values / progress.first).log() - norms.log()
    target = (target - target.mean()).clamp(-math.log(LIMIT), math.log(LIMIT))
    share = 0.5 if started else 1.0
    progress.weights.copy_(((1 - share) * progress.weights.log() + share * target).exp())


def _norm(loss: Tensor, parameters: Sequence[Tensor], *, together: bool) -> Tensor:
    gradients = [
        gradient.float()
        for gradient in torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        if gradient is not None
    ]
    if together:
        gradients = [_mean_over_processes(gradient) for gradient in gradients]
    squares = [gradient.square().sum() for gradient in gradients]
    return torch.stack(squares).sum().sqrt() if squares else loss.new_zeros(())


def _mean_over_processes(value: Tensor) -> Tensor:
    summed = value.clone()
    torch.distributed.all_reduce(summed)
    return summed / torch.distributed.get_world_size()
