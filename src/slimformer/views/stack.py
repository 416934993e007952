"""Putting views on a model, listing them, and taking them off again: baked in or stripped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from slimformer.anatomy import Anatomy, known, unwrap
from slimformer.anatomy.block import sync_config
from slimformer.anatomy.matrix import Matrix, Oriented, sync_sizes
from slimformer.errors import ViewError
from slimformer.views.mask import MaskView
from slimformer.views.packed import packed_of, set_packed
from slimformer.views.slice import SliceView, cut_of, follow, settle, skip_of, uncut, unfollow, unskip
from slimformer.views.view import View, check_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slimformer.anatomy.matrix import Part
    from slimformer.formats import PackedWeight

#: Field of a config that tells how many dimensions a bare model shows of its hidden states, where these are not all.
OUTPUT_DIMENSIONS = "output_dimensions"


@dataclass(frozen=True)
class Attached:
    """One view where it stands."""

    module: nn.Module
    path: str
    tensor: str
    view: View
    part: Part | None
    original: Tensor


def attach(target: Matrix | nn.Module, view: View, tensor: str = "weight") -> None:
    """Put a view on a matrix, above the views that are already there.

    Args:
        target: A `Matrix` of an `Anatomy` (parts of fused matrices included), or an `nn.Linear`, `Conv1D`
            or `nn.Embedding`. A slice of rows takes the bias along.
        view: The view; one instance may serve several tied matrices.
        tensor: "weight", or "bias" for a mask of its own.

    Raises:
        ViewError: If the view does not fit the shape or cannot stand on the views below it.
    """
    matrix = target if isinstance(target, Matrix) else Matrix(target)
    where = f"{matrix.path or type(matrix.module).__name__}.{tensor}"
    below = [
        at.view for at in _on(matrix.module, matrix.path) if at.tensor == tensor and _overlap(at.part, matrix.part)
    ]
    check_stack(view, below, where)
    if isinstance(view, SliceView):
        if matrix.part is not None:
            raise ViewError(
                f"cannot slice one part of the fused `{where}`: the forward cuts its output into equal parts; "
                "slice the whole module with `chunks`, or use `slice_neurons` or `slice_heads`"
            )
        view.check(matrix.weight.shape, where)
        _attach_slice(matrix, view)
        return
    if isinstance(view, MaskView):
        value = matrix.weight if tensor == "weight" else matrix.bias
        if value is None:
            raise ViewError(f"there is no `{where}` to mask")
        view.check(value.shape, where)
    matrix.parametrize(view, tensor)


def attached(model: nn.Module) -> Iterator[Attached]:
    """All views of a model in the order they apply, tensor by tensor."""
    for path, module in model.named_modules():
        yield from _on(module, path)


@torch.no_grad()
def bake(model: nn.Module) -> nn.Module:
    """Replace every viewed weight by what the views show, for good, and remove the views.

    The baked model computes what the viewed model computes, at the widths in force now. Everything is
    computed before anything is changed. Weights that several modules share stay shared. A block that is skipped is
    removed.
    """
    viewed = _viewed(model)
    _check_tied(model, viewed)
    baked: dict[int, nn.Parameter] = {}
    values: list[tuple[nn.Module, str, nn.Parameter]] = []
    for module, tensor, original in viewed:
        if id(original) not in baked:
            value = cast("Tensor", getattr(module, tensor)).detach().clone(memory_format=torch.contiguous_format)
            baked[id(original)] = nn.Parameter(value, requires_grad=original.requires_grad)
        values.append((module, tensor, baked[id(original)]))
    packed = _cut_packed(model)
    for module in model.modules():
        settle(module)
    for module, weight in packed:
        set_packed(module, weight)
    for module, tensor, value in values:
        _remove(module, tensor)
        setattr(module, tensor, value)
    for module in {id(module): module for module, _, _ in values}.values():
        sync_sizes(module)
    _remove_skipped(model)
    _sync_config(model)
    return model


def _cut_packed(model: nn.Module) -> list[tuple[nn.Module, PackedWeight]]:
    """What is left of packed weights under the slices in force; those under other views are not theirs any more."""
    cut = []
    for path, module in model.named_modules():
        packed = packed_of(module)
        views = [at.view for at in _on(module, path) if at.tensor == "weight"]
        if packed is None or not views or not all(isinstance(view, SliceView) for view in views):
            continue
        codes, scales = packed.unpack(), packed.scales
        for view in cast("list[SliceView]", views):
            codes, scales = view.cut(codes, scales, packed.group_size)
        if codes.shape != (len(packed.codes), packed.columns):
            cut.append((module, packed.replaced(codes, scales)))
    return cut


def strip(model: nn.Module) -> nn.Module:
    """Remove every view and leave the stored weights as they are."""
    viewed = _viewed(model)
    for module in model.modules():
        unfollow(module)
        unskip(module)
        uncut(module)
    for module, tensor, _ in viewed:
        _remove(module, tensor)
    return model


def _attach_slice(matrix: Matrix, view: SliceView) -> None:
    matrix.parametrize(view)
    if view.axis == "rows":
        if getattr(matrix.module, "bias", None) is not None:
            matrix.parametrize(view, "bias")
        if matrix.transposed:
            # Conv1D shapes its output by this attribute instead of by its weight.
            follow(matrix.module, "nf", view.width, view.unit * view.chunks)


def _on(module: nn.Module, path: str) -> Iterator[Attached]:
    if not parametrize.is_parametrized(module):
        return
    for tensor, stack in cast("nn.ModuleDict", module.parametrizations).items():
        for entry in cast("parametrize.ParametrizationList", stack):
            view, part = (entry.inner, entry.part) if isinstance(entry, Oriented) else (entry, None)
            if isinstance(view, View):
                yield Attached(module, path, tensor, view, part, cast("Tensor", stack.original))


def _viewed(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Every (module, tensor, stored weight) under views, once; other parametrizations there are refused."""
    found: dict[tuple[int, str], tuple[nn.Module, str, Tensor]] = {}
    for at in attached(model):
        stack = cast("nn.ModuleDict", at.module.parametrizations)[at.tensor]
        count = sum(other.tensor == at.tensor for other in _on(at.module, at.path))
        if count != len(cast("parametrize.ParametrizationList", stack)):
            raise ViewError(
                f"`{at.path}.{at.tensor}` also carries a parametrization that is not a view; remove that one first"
            )
        found[id(at.module), at.tensor] = (at.module, at.tensor, at.original)
    return list(found.values())


def _check_tied(model: nn.Module, viewed: list[tuple[nn.Module, str, Tensor]]) -> None:
    """Refuse to bake a weight that another module uses without the view: the two would drift apart."""
    originals = {id(original) for _, _, original in viewed}
    users: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in originals:
            users.setdefault(id(parameter), []).append(name)
    for names in users.values():
        plain = [name for name in names if "parametrizations." not in name]
        if plain:
            raise ViewError(
                f"`{plain[0]}` shares its weight with a viewed one and has no view; "
                "attach the same view to it, or untie the two, before baking"
            )


def _remove(module: nn.Module, tensor: str) -> None:
    # torch keeps the property of a parametrized tensor on the module's own class, which `copy.deepcopy`
    # shares between copies: without a class of its own, taking it off one copy would break the others.
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))
    parametrize.remove_parametrizations(module, tensor, leave_parametrized=False)


def _remove_skipped(model: nn.Module) -> None:
    """Remove the blocks that have settled on being skipped."""
    if any(skip_of(module) is not None for module in model.modules()):
        anatomy = Anatomy.of(model)
        anatomy.keep_blocks([block.index for block in anatomy.blocks if skip_of(block.module) is None])


def _sync_config(model: nn.Module) -> None:
    """Let the config of a Transformers model follow widths that are now for good."""
    plain = unwrap(model)
    if getattr(getattr(plain, "config", None), "model_type", None) in known():
        anatomy = Anatomy.of(plain)
        sync_config(anatomy.base, anatomy.family)
        width = cut_of(anatomy.base)
        if width is not None:
            setattr(anatomy.config, OUTPUT_DIMENSIONS, width.value)


def _overlap(one: Part | None, other: Part | None) -> bool:
    return one is None or other is None or one == other
