"""Weights of a few levels: the one view for every number format, and what it shows as it is stored.

What is trained is what is stored: `QuantizedView.codes` are the very numbers its `forward` multiplies by the scales, so
codes and scales are, bit for bit, the weight the model computes with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from slimformer.anatomy.matrix import Oriented, is_conv1d
from slimformer.errors import ViewError
from slimformer.formats import Granularity, NumberFormat, find_format
from slimformer.views.slice import SliceView
from slimformer.views.stack import attached
from slimformer.views.view import BELOW_SLICE, View, pass_inside, remember

if TYPE_CHECKING:
    from torch.nn.utils import parametrize

    from slimformer.anatomy.matrix import Part
    from slimformer.formats.number import Shared


def quantize_weight(
    weight: Tensor,
    format: str | NumberFormat,
    granularity: Shared = "row",
    clip: float | None = 2.5,
    group_size: int | None = None,
) -> Tensor:
    """A weight as the levels of a number format, with a straight-through gradient.

    Args:
        weight: [out, in].
        format: A name in `registry.FORMATS`, or a format.
        granularity: What shares a scale: the "matrix", each "row", or each "group" of a row.
        clip: Bound on `|w|`; the gradient is zero where `|w| ≥ clip` and passes unchanged elsewhere. None for no bound.
        group_size: Weights of a group.
    """
    return _through(weight, find_format(format), Granularity(granularity, group_size), clip)


class QuantizedView(View):
    """Shows a weight as the levels of a number format; training goes on in the float weight behind it.

    Args:
        format: A name in `registry.FORMATS`, or a format.
        granularity: What shares a scale: the "matrix", each "row", or each "group" of a row.
        group_size: Weights of a group.
        clip: Bound on `|w|`, beyond which no gradient passes; None for none.
    """

    kind = "quantized"

    def __init__(
        self,
        format: str | NumberFormat,
        granularity: Shared = "row",
        group_size: int | None = None,
        clip: float | None = 2.5,
    ) -> None:
        super().__init__()
        self.format = find_format(format)
        self.granularity = Granularity(granularity, group_size)
        self.clip = clip

    def codes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Codes as int8, of the weight's shape, and one scale for all that share it: see `NumberFormat.quantize`."""
        return self.format.quantize(weight, self.granularity, self.clip)

    def forward(self, weight: Tensor) -> Tensor:
        """Quantize the weight."""
        return _through(weight, self.format, self.granularity, self.clip)

    def spec(self) -> dict[str, Any]:
        """Settings of this view."""
        settings = {"granularity": self.granularity.name, "group_size": self.granularity.group_size, "clip": self.clip}
        return {"kind": self.kind, "format": self.format.name, **settings}

    def after(self, earlier: View) -> str | None:
        """A quantized view reads whole rows, so a slice cannot come first; and a weight is quantized once."""
        if isinstance(earlier, QuantizedView):
            return f"the weight is already {earlier.format.name}"
        return BELOW_SLICE if earlier.kind == "slice" else super().after(earlier)

    def extra_repr(self) -> str:
        """Show the settings in the model's print-out."""
        size = "" if self.granularity.group_size is None else f", group_size={self.granularity.group_size}"
        return f"{self.format.name!r}, granularity={self.granularity.name!r}{size}, clip={self.clip}"


def _through(weight: Tensor, number_format: NumberFormat, granularity: Granularity, clip: float | None) -> Tensor:
    """Codes times scales, with the gradient of the weight itself inside ±clip."""
    quantized: Tensor = _Through.apply(weight, number_format, granularity, clip)  # type: ignore[no-untyped-call]
    return quantized


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, number_format: NumberFormat, granularity: Granularity, clip: float | None
    ) -> Tensor:
        codes, scales = number_format.encode(weight, granularity, remember(ctx, weight, clip))
        # A new tensor of a large table costs more than the arithmetic, so the codes become the weight where they are.
        values = number_format.decode(codes, codes.dtype).mul_(scales.to(codes.dtype))
        return granularity.unfold(values, weight.shape).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return pass_inside(ctx, gradient), None, None, None


@dataclass(frozen=True)
class QuantizedWeight:
    """One weight as codes and scales.

    Args:
        path: The module that holds it.
        format: What the codes are.
        codes: int8, [out, in].
        scales: [1, 1], [out, 1] or [out, groups], in the precision of the weight.
        group_size: Columns that share a scale; None for all.
        transposed: Whether the module stores the weight as [in, out].
        shared_with: Other modules that hold the same weight.
    """

    path: str
    format: NumberFormat
    codes: Tensor
    scales: Tensor
    group_size: int | None
    transposed: bool
    shared_with: list[str] = field(default_factory=list)

    @property
    def weight(self) -> Tensor:
        """The weight the model computes with, [out, in]."""
        return self.format.dequantize(self.codes, self.scales, self.group_size)


@torch.no_grad()
def quantized_weights(model: nn.Module) -> list[QuantizedWeight]:
    """All weights of a model that are under quantized views, each once."""
    weights: dict[int, QuantizedWeight] = {}
    seen: set[str] = set()
    for at in attached(model):
        if not isinstance(at.view, QuantizedView) or at.path in seen:
            continue
        seen.add(at.path)
        if id(at.original) in weights:
            weights[id(at.original)].shared_with.append(at.path)
        else:
            weights[id(at.original)] = _read(at.module, at.path)
    return list(weights.values())


def _read(module: nn.Module, path: str) -> QuantizedWeight:
    stack = cast("parametrize.ParametrizationList", cast("nn.ModuleDict", module.parametrizations)["weight"])
    transposed = is_conv1d(module)
    stored: Tensor = stack.original.mT if transposed else stack.original
    pieces: list[tuple[Part | None, QuantizedView, Tensor, Tensor]] = []
    slices: list[SliceView] = []
    for entry in stack:
        view, part = (entry.inner, entry.part) if isinstance(entry, Oriented) else (entry, None)
        if isinstance(view, QuantizedView):
            pieces.append((part, view, *view.codes(stored if part is None else part.take(stored))))
        elif pieces and isinstance(view, SliceView):
            slices.append(view)
        elif pieces:
            raise ViewError(
                f"`{path}` has a {getattr(view, 'kind', 'foreign')} view on top of its quantized one; what it shows "
                "are not codes and scales any more: bake that view first, then quantize"
            )
        else:
            stored = entry(stored.mT if transposed else stored)
            stored = stored.mT if transposed else stored
    view = pieces[0][1]
    codes, scales = _joined(path, stored.shape[0], pieces)
    for each in slices:
        codes, scales = each.cut(codes, scales, view.granularity.group_size)
    return QuantizedWeight(path, view.format, codes, scales, view.granularity.group_size, transposed)


def _joined(
    path: str, rows: int, pieces: list[tuple[Part | None, QuantizedView, Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Codes and scales of a whole module from those of the matrices that are fused in it."""
    part, view, codes, scales = pieces[0]
    if part is None:
        return codes, scales
    if len(pieces) != part.count or any(other[1].spec() != view.spec() for other in pieces):
        raise ViewError(f"only some of the matrices fused in `{path}` are quantized alike; quantize all or none")
    all_codes = codes.new_zeros(rows, codes.shape[-1])
    all_scales = scales.new_zeros(rows, scales.shape[-1])
    for piece, _, own_codes, own_scales in pieces:
        assert piece is not None
        all_codes = piece.put(all_codes, own_codes)
        all_scales = piece.put(all_scales, own_scales.expand(len(own_codes), -1))
    return all_codes, all_scales
