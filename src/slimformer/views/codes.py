"""The quantized weights of a model as they are stored: codes and scales.

This is the seam between training and packing: `codes x scales` is, bit for bit, the weight the model computes with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from slimformer.anatomy.matrix import Oriented, is_conv1d
from slimformer.errors import ViewError
from slimformer.views.quantized import QuantizedView, Sharing
from slimformer.views.stack import attached

if TYPE_CHECKING:
    from torch.nn.utils import parametrize

    from slimformer.anatomy.part import Part


@dataclass(frozen=True)
class QuantizedWeight:
    """One weight as codes and scales.

    Args:
        path: The module that holds it.
        kind: What the codes are: "ternary", "binary" or "integer".
        bits: Bits of an integer code.
        codes: int8, [out, in].
        scales: [1, 1], [out, 1] or [out, groups], in the precision of the weight.
        group_size: Columns that share a scale; None for all.
        transposed: Whether the module stores the weight as [in, out].
        shared_with: Other modules that hold the same weight.
    """

    path: str
    kind: str
    bits: int | None
    codes: Tensor
    scales: Tensor
    group_size: int | None
    transposed: bool
    shared_with: list[str] = field(default_factory=list)

    @property
    def weight(self) -> Tensor:
        """The weight the model computes with, [out, in]."""
        sharing = Sharing("row") if self.group_size is None else Sharing("group", self.group_size)
        return self.codes * sharing.spread(self.scales, self.codes.shape[-1])


@torch.no_grad()
def quantized_weights(model: nn.Module) -> list[QuantizedWeight]:
    """All weights of a model that are under quantized views, each once."""
    found: dict[int, QuantizedWeight] = {}
    seen: set[str] = set()
    for at in attached(model):
        if not isinstance(at.view, QuantizedView) or at.path in seen:
            continue
        seen.add(at.path)
        if id(at.original) in found:
            found[id(at.original)].shared_with.append(at.path)
        else:
            found[id(at.original)] = _read(at.module, at.path)
    return list(found.values())


def _read(module: nn.Module, path: str) -> QuantizedWeight:
    stack = cast("parametrize.ParametrizationList", cast("nn.ModuleDict", module.parametrizations)["weight"])
    transposed = is_conv1d(module)
    stored: Tensor = stack.original.mT if transposed else stack.original
    pieces: list[tuple[Part | None, QuantizedView, Tensor, Tensor]] = []
    for entry in stack:
        view, part = (entry.inner, entry.part) if isinstance(entry, Oriented) else (entry, None)
        if isinstance(view, QuantizedView):
            pieces.append((part, view, *view.codes(stored if part is None else part.take(stored))))
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
    bits: int | None = getattr(view, "bits", None)
    return QuantizedWeight(path, view.kind, bits, codes, scales, view.sharing.group_size, transposed)


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
