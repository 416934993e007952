"""RecAdam: Adam that begins at a model's weights and lets go of them step by step (arXiv 2004.12651)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import Optimizer

from slimformer.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor


@dataclass(frozen=True)
class Annealing:
    """How the weight λ(t) of what is learned rises from 0 to 1, while that of what is recalled falls.

    Args:
        shape: `sigmoid`, 1 / (1 + exp(-k·(t - t0))), or `linear`, min(1, t / t0).
        middle: t0, the step at which a sigmoid has come half the way, or a line the whole.
        slope: k, how steep a sigmoid is.
    """

    shape: Literal["sigmoid", "linear"] = "sigmoid"
    middle: float = 250.0
    slope: float = 0.1

    def at(self, step: int) -> float:
        """λ at a step, counted from 1."""
        if self.shape == "linear":
            return min(1.0, step / self.middle)
        # The same as the sigmoid, and without an overflow far below the middle.
        return (1 + math.tanh(self.slope * (step - self.middle) / 2)) / 2


class RecAdam(Optimizer):
    """Adam on λ(t) times the loss, and a pull towards the start: the gradient of (1 - λ(t))·pull/2·‖θ - θ0‖².

    The pull is no part of Adam's moments and is taken of the weights that Adam has just moved, as in the published
    code. Weights without a start, such as those of a new head, learn by Adam alone. The pull of one step ends at the
    start itself and never goes beyond it, however large it and the learning rate are.

    The starts are no part of the state: a run that is resumed brings them again.

    Args:
        params: Parameters or groups of them.
        starts: Parameter → θ0.
        lr: Learning rate.
        betas: Decay of both moments.
        eps: Added to the root of the second moment, before the bias of the moments is corrected.
        weight_decay: Decoupled weight decay.
        correct_bias: Whether the bias of the moments is corrected.
        pull: How strong the pull is.
        annealing: λ(t).

    Example:
        >>> starts = {weight: weight.detach().clone() for weight in model.bert.parameters()}
        >>> optimizer = RecAdam(model.parameters(), starts, lr=2e-5, pull=5000, annealing=Annealing(middle=500))
    """

    def __init__(
        self,
        params: Iterable[Any],
        starts: Mapping[Tensor, Tensor],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        pull: float = 5000.0,
        annealing: Annealing = Annealing(),
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.starts = dict(starts)
        self.correct_bias = correct_bias
        self.pull = pull
        self.annealing = annealing
        if not any(weight in self.starts for group in self.param_groups for weight in group["params"]):
            raise TrainingError(
                "none of the weights has a start to be pulled to; RecAdam needs the weights of the model as they are, "
                "not cut into shards"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)
        return loss

    def _move(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        state["step"] += 1
        step, (beta1, beta2), gradient = state["step"], group["betas"], weight.grad
        assert gradient is not None
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = group["lr"]
        if self.correct_bias:
            size *= math.sqrt(1 - beta2**step) / (1 - beta1**step)
        start = self._start(weight)
        learned = 1.0 if start is None else self.annealing.at(step)
        denominator = state["exp_avg_sq"].sqrt().add_(group["eps"])
        weight.addcdiv_(state["exp_avg"], denominator, value=-size * learned)
        if start is not None:
            weight.lerp_(start, min(1.0, group["lr"] * (1 - learned) * self.pull))
        if group["weight_decay"] > 0:
            weight.mul_(1 - group["lr"] * group["weight_decay"])

    def _start(self, weight: Tensor) -> Tensor | None:
        """θ0 where the weight is."""
        start = self.starts.get(weight)
        if start is not None and start.device != weight.device:
            start = self.starts[weight] = start.to(weight.device)
        return start
