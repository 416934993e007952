"""Views as plain data, so that a viewed model can be saved and rebuilt without pickling anything.

`describe` says which views stand where; `restore` puts them on a fresh copy of the base, after which the
state dict saved along with the description fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy.matrix import Matrix, Part
from slimformer.errors import ViewError
from slimformer.views.mask import MaskView, ScheduledMask
from slimformer.views.quantized import QuantizedView
from slimformer.views.slice import Skip, SliceView, follow, followed, skip, skip_of
from slimformer.views.stack import attach, attached
from slimformer.views.width import Extent, Width

if TYPE_CHECKING:
    from torch import nn

    from slimformer.views.view import View

Description = list[dict[str, Any]]


def describe(model: nn.Module) -> Description:
    """List the views of a model as JSON types, in the order in which they have to be attached."""
    views: dict[int, int] = {}
    widths: dict[int, int] = {}
    entries: Description = []
    seen: set[tuple[str, int]] = set()
    for at in attached(model):
        # A slice of rows stands on weight and bias; attaching it once restores both.
        if (at.path, id(at.view)) in seen:
            continue
        seen.add((at.path, id(at.view)))
        entry = {"module": at.path, "tensor": at.tensor, "id": views.setdefault(id(at.view), len(views))}
        if at.part is not None:
            entry["part"] = [at.part.index, at.part.count, at.part.groups]
        if isinstance(at.view, SliceView):
            entry["width"] = widths.setdefault(id(at.view.width), len(widths))
        entries.append({**at.view.spec(), **entry})
    # Slices stand on top of every stack; one that takes a bias along must find that bias's views in place.
    entries.sort(key=lambda entry: bool(entry["kind"] == "slice"))
    for path, module in model.named_modules():
        how = skip_of(module)
        if how is not None:
            entry = {"kind": "skip", "module": path, "depth": how.depth.value, "layer": how.layer}
            entries.append({**entry, "returns": None if how.returns is None else list(how.returns)})
        entries.extend(
            {"kind": "follow", "module": path, "attribute": name, "width": widths[id(width)], "unit": unit}
            for name, (width, unit) in followed(module).items()
        )
    return entries


def restore(model: nn.Module, description: Description) -> nn.Module:
    """Attach the views of a description to a model that has none; load the state dict afterwards."""
    if next(attached(model), None) is not None:
        raise ViewError("the model carries views already; strip or bake them before restoring others")
    views: dict[int, View] = {}
    widths: dict[int, Width] = {}
    extent = Extent()
    for entry in description:
        if entry["kind"] == "follow":
            module = model.get_submodule(entry["module"])
            follow(module, entry["attribute"], widths[entry["width"]], entry["unit"])
            continue
        if entry["kind"] == "skip":
            returns = None if entry["returns"] is None else tuple(entry["returns"])
            depth = Width(1, entry["depth"], least=0, extent=extent)
            skip(model.get_submodule(entry["module"]), Skip(depth, returns, entry["layer"]))
            continue
        part = Part(*entry["part"]) if "part" in entry else None
        if entry["id"] not in views:
            views[entry["id"]] = _build(entry, widths, extent)
        attach(Matrix(model, entry["module"], part), views[entry["id"]], entry["tensor"])
    return model


def _build(entry: dict[str, Any], widths: dict[int, Width], extent: Extent) -> View:
    match entry["kind"]:
        case "quantized":
            return QuantizedView(entry["format"], entry["granularity"], entry["group_size"], entry["clip"])
        case "mask":
            return MaskView(torch.zeros(entry["scores"]), entry["threshold"])
        case "scheduled mask":
            group = None if entry["group"] is None else (entry["group"][0], entry["group"][1])
            scores = torch.zeros(entry["scores"])
            return ScheduledMask(scores, entry["threshold"], entry["start"], entry["target"], group)
        case "slice":
            if entry["width"] not in widths:
                widths[entry["width"]] = extent.add(entry["full"])
            width = widths[entry["width"]]
            return SliceView(width, entry["axis"], entry["unit"], entry["chunks"])
        case kind:
            raise ViewError(f"there is no view of kind `{kind}`; known: mask, quantized, scheduled mask, slice")
