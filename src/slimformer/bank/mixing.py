"""One forward of the base for rows of several tasks, each row with the weights of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slimformer.anatomy.matrix import is_conv1d
from slimformer.bank.sharing import scratch
from slimformer.views.rounding import RoundsInput
from slimformer.views.snapshot import clone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transformers import PreTrainedModel


class UnmixableError(Exception):
    """A matrix is applied to something that is not the rows of the batch."""


@dataclass(frozen=True)
class Stretch:
    """Rows of a batch that belong to one task.

    Args:
        start: The first row.
        stop: The row after the last.
        shown: Gives the task's form of a weight, by name, weight and a place to compute it in.
    """

    start: int
    stop: int
    shown: Callable[[str, Tensor, Tensor], Tensor]


class MixedMatrix(nn.Module):
    """A linear layer that masks its weight anew for the rows of each task.

    A masked weight lives in the cache of the processor only until its rows are through, so that many tasks take
    no more memory than one.
    """

    def __init__(self, module: nn.Module, name: str, stretches: Sequence[Stretch]) -> None:
        super().__init__()
        self.weight = module.weight
        self.bias = module.bias
        self.name = name
        self.transposed = is_conv1d(module)
        self.stretches = stretches
        self.rounding = module.input_rounding if isinstance(module, RoundsInput) else None
        # Those that round activations in the other way.
        self._forward_pre_hooks = module._forward_pre_hooks
        self._forward_hooks = module._forward_hooks

    def forward(self, rows: Tensor) -> Tensor:
        """Apply each task's weight to its rows."""
        if rows.shape[0] != self.stretches[-1].stop:
            raise UnmixableError(self.name)
        rows = rows if self.rounding is None else self.rounding(rows)
        weight: Any = self.weight
        place = scratch(weight)
        parts = []
        for stretch in self.stretches:
            shown = stretch.shown(self.name, weight, place)
            shown = shown.T if self.transposed else shown
            parts.append(functional.linear(rows[stretch.start : stretch.stop], shown, self.bias))  # type: ignore[arg-type]
        return torch.cat(parts)


class Given(nn.Module):
    """Stands in for a base whose outputs are known already."""

    def __init__(self, outputs: Any, config: Any) -> None:
        super().__init__()
        self.outputs = outputs
        self.config = config

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The outputs, whatever the inputs."""
        return self.outputs


def run_mixed(
    base: PreTrainedModel, masked: set[str], stretches: Sequence[Stretch], inputs: Mapping[str, Tensor]
) -> list[Any]:
    """Run rows of several tasks through the base once; return the outputs of each stretch.

    Args:
        base: The bare base.
        masked: Names, inside the base, of the weights that some task masks.
        stretches: Which rows belong to which task, in order and without gaps.
        inputs: The batch.
    """
    modules = {name.removesuffix(".weight") for name in masked}
    mixed = clone(base, {path: MixedMatrix(base.get_submodule(path), f"{path}.weight", stretches) for path in modules})
    extra = {"use_cache": False} if hasattr(base.config, "use_cache") else {}
    outputs = mixed(**inputs, **extra)
    return [_cut(outputs, stretch) for stretch in stretches]


def head_on(model: PreTrainedModel, outputs: Any, inputs: Mapping[str, Tensor]) -> Any:
    """What a model's head makes of outputs of its base that are known already."""
    prefix = model.base_model_prefix
    headed = clone(model, {prefix: Given(outputs, model.config)})
    return headed(**inputs)


def _cut(outputs: Any, stretch: Stretch) -> Any:
    kept = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
    return type(outputs)(**{name: value[stretch.start : stretch.stop] for name, value in kept.items()})
