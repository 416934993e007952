"""LoRA adapters of PEFT on an elastic model: cut along with the weights they adapt, and merged into all sizes at once.

An adapter adds B·A to a weight (arXiv 2106.09685, equation 3). Of a weight whose first rows are in use, the first rows
of B are needed; of one whose first columns are, the first columns of A.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from torch.nn import functional

from slimformer.errors import SizeError
from slimformer.sizes.elastic import Elastic, make_elastic, take_off
from slimformer.views import SliceView, attached

if TYPE_CHECKING:
    from torch import Tensor, nn

_CUTS = "_slimformer_adapter_cuts"


def nest_adapters(model: nn.Module) -> Elastic:
    """Let the adapters that PEFT put on an elastic model follow its sizes; return these.

    Args:
        model: What `peft.get_peft_model` made of an elastic model. Only plain LoRA can be cut: an adapter of another
            sort on a sliced layer is refused, on any other layer it is left alone.

    Example:
        >>> adapted = get_peft_model(model, LoraConfig(target_modules=["query", "dense"]))
        >>> with nest_adapters(adapted).at("S"):
        ...     adapted(**inputs).loss.backward()
    """
    elastic = Elastic.of(model)
    adapted = _adapted(model)
    if not adapted:
        raise SizeError("the model has no adapters; put them on with `peft.get_peft_model` first")
    sliced = [(path, layer, slices) for path, layer in adapted if (slices := _slices(layer))]
    for path, layer, _ in sliced:
        _refuse_unknown(path, layer)
    for _, layer, slices in sliced:
        for adapter in layer.lora_A:
            for view in slices:
                _cut((layer.lora_B if view.axis == "rows" else layer.lora_A)[adapter], view)
    return elastic


def merge_adapters(model: Any) -> Any:
    """Put the adapters into the weights, for all sizes at once, and return the elastic model without PEFT."""
    elastic = Elastic.of(model)
    if not hasattr(model, "merge_and_unload"):
        raise SizeError(f"a {type(model).__name__} has no adapters to merge; give what `peft.get_peft_model` made")
    for module in model.modules():
        if module.__dict__.pop(_CUTS, None) is not None:
            del module.__dict__["forward"]
    nested = {
        "heads": any(block.heads is not None for block in elastic.blocks),
        "skip": any(block.depth is not None for block in elastic.blocks),
    }
    # PEFT adds to a weight in place, or puts another in its stead, which a weight under views would not keep.
    take_off(model)
    merged = model.merge_and_unload()
    make_elastic(merged, elastic.sizes, **nested).published.update(elastic.published)
    return merged


def _adapted(model: nn.Module) -> list[tuple[str, Any]]:
    """Layers that adapters stand on, as PEFT wraps them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [(path, module) for path, module in model.named_modules() if isinstance(module, BaseTunerLayer)]


def _slices(layer: Any) -> list[SliceView]:
    views = [at.view for at in attached(layer.get_base_layer()) if at.tensor == "weight"]
    return [view for view in views if isinstance(view, SliceView)]


def _refuse_unknown(path: str, layer: Any) -> None:
    from peft.tuners.lora import LoraLayer

    plain = isinstance(layer, LoraLayer) and not layer.lora_variant and len(layer.lora_A)
    if not plain:
        sort = ", ".join(type(each).__name__ for each in getattr(layer, "lora_variant", {}).values())
        raise SizeError(
            f"`{path}` is cut by the sizes of the model, and its adapter ({sort or type(layer).__module__}) cannot be; "
            "use plain LoRA, or leave the layer out of `target_modules`"
        )


def _cut(linear: nn.Linear, view: SliceView) -> None:
    cuts = linear.__dict__.setdefault(_CUTS, [])
    if view not in cuts:
        cuts.append(view)
    # On the instance, so that PEFT finds the whole weight where it saves, loads and merges it.
    linear.__dict__["forward"] = MethodType(_forward, linear)


def _forward(linear: Any, inputs: Tensor) -> Tensor:
    weight, bias = linear.weight, linear.bias
    for view in linear.__dict__[_CUTS]:
        weight = view(weight)
        bias = bias if bias is None or view.axis != "rows" else view(bias)
    return functional.linear(inputs, weight, bias)
