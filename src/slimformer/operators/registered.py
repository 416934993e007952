"""The operators as torch knows them: what they compute, what shapes they give, and how a gradient passes.

`linear` rounds each token of its input to int8, multiplies with the codes of a weight in whole numbers, and scales once
for each row or group: the product that `views.rounding` and a quantized weight stand for, without a float weight. A sum
of whole numbers has one value, so an output depends neither on the rest of the batch nor on threads.

All three take a weight as `operators.panels` lays it out: `panels` and `scales`, how many rows it has, the `rule` of
its layout and the columns of a group. They keep nothing from one call to the next.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimformer.errors import ViewError
from slimformer.runtime.native import instruction_set, is_built, kernels

if TYPE_CHECKING:
    from collections.abc import Callable

_WEIGHT = "Tensor panels, Tensor scales, int rows, int columns, int[] rule, int group"
_SCHEMAS = {
    "linear": f"(Tensor x, {_WEIGHT}, Tensor? bias=None) -> Tensor",
    "embedding": f"(Tensor ids, {_WEIGHT}) -> Tensor",
    "codes": f"({_WEIGHT}) -> Tensor",
}
#: How a weight is told to an operator, in the order of its arguments.
Weight = tuple[Tensor, Tensor, int, int, list[int], int]


def are_here() -> bool:
    """Whether the operators can compute: they need the native kernels, and that these are not switched off."""
    return is_built()


def _panels(panels: Tensor, scales: Tensor, rows: int, columns: int, rule: list[int], group: int) -> Any:
    return kernels().Panels(panels.numpy(), scales.numpy(), rows, columns, group, tuple(rule))


def _linear(
    x: Tensor,
    panels: Tensor,
    scales: Tensor,
    rows: int,
    columns: int,
    rule: list[int],
    group: int,
    bias: Tensor | None = None,
) -> Tensor:
    if x.shape[-1] != columns:
        raise RuntimeError(f"inputs of {x.shape[-1]} features were given to a packed weight of {columns}")
    flat = x.detach().reshape(math.prod(x.shape[:-1]), columns).float().contiguous()
    added = None if bias is None else bias.detach().float().contiguous().numpy()
    # As many threads as torch may use, of a pool that sleeps between products; who finds it busy computes alone.
    out = torch.from_numpy(
        _panels(panels, scales, rows, columns, rule, group).multiply(
            flat.numpy(), added, torch.get_num_threads(), instruction_set()
        )
    )
    # A row with something that is no number comes back as NaN throughout; a bias, or what overflows, may do the same.
    if not math.isfinite(float(out.sum(dtype=torch.float64))) and not bool(flat.isfinite().all()):
        raise ViewError(
            "an activation that is to be rounded holds NaN or infinity; check the inputs, or lower `--lr` if the "
            "model has diverged"
        )
    return out.view(*x.shape[:-1], rows).to(x.dtype)


def _embedding(
    ids: Tensor, panels: Tensor, scales: Tensor, rows: int, columns: int, rule: list[int], group: int
) -> Tensor:
    flat = ids.reshape(-1).long().contiguous().numpy()
    out = _panels(panels, scales, rows, columns, rule, group).look_up(flat)
    return torch.from_numpy(out).view(*ids.shape, columns)


def _codes(panels: Tensor, scales: Tensor, rows: int, columns: int, rule: list[int], group: int) -> Tensor:
    return torch.from_numpy(_panels(panels, scales, rows, columns, rule, group).codes())


def decoded(weight: Weight) -> Tensor:
    """The weight in float32, [rows, columns]: codes times scales."""
    _, scales, rows, columns, _, group = weight
    codes: Tensor = torch.ops.slimformer.codes(*weight)
    shared = scales[:, :rows].mT
    return codes * (shared if group >= columns else shared.repeat_interleave(group, dim=-1)[:, :columns])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, panels, scales, *numbers, bias = inputs
    ctx.save_for_backward(panels, scales)
    ctx.numbers, ctx.biased = numbers, bias is not None


def _pass_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    # Straight through the rounding, as `views.rounding` has it without a clip.
    panels, scales = ctx.saved_tensors
    to_input = None
    if ctx.needs_input_grad[0]:
        to_input = gradient @ decoded((panels, scales, *ctx.numbers)).to(gradient.dtype)
    to_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0) if ctx.biased and ctx.needs_input_grad[-1] else None
    return to_input, None, None, None, None, None, None, to_bias


def _register() -> torch.library.Library:
    library = torch.library.Library("slimformer", "DEF")
    for name, schema in _SCHEMAS.items():
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for name, compute in {"linear": _linear, "embedding": _embedding, "codes": _codes}.items():
        library.impl(name, compute, "CPU")

    def linear(x: Tensor, panels: Tensor, scales: Tensor, rows: int, *_: Any) -> Tensor:
        return x.new_empty(*x.shape[:-1], rows)

    def embedding(ids: Tensor, panels: Tensor, scales: Tensor, rows: int, columns: int, *_: Any) -> Tensor:
        return scales.new_empty(*ids.shape, columns)

    def codes(panels: Tensor, scales: Tensor, rows: int, columns: int, *_: Any) -> Tensor:
        return scales.new_empty(rows, columns, dtype=torch.int8)

    fakes: dict[str, Callable[..., Tensor]] = {"linear": linear, "embedding": embedding, "codes": codes}
    for name, fake in fakes.items():
        torch.library.register_fake(f"slimformer::{name}", fake, lib=library)
    torch.library.register_autograd("slimformer::linear", _pass_back, setup_context=_remember, lib=library)
    return library


#: What it registered is there as long as it lives.
LIBRARY = _register()
