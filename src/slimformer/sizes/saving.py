"""`save_pretrained` of an elastic model: its largest size, which anyone can load, instead of weights under views."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from slimformer.errors import SizeError
from slimformer.views import snapshot

if TYPE_CHECKING:
    from torch import nn

_BEFORE = "_slimformer_save_pretrained"


def install(model: nn.Module) -> None:
    """Let this one model, if it can be saved, be saved as its largest size."""
    if hasattr(model, "save_pretrained"):
        model.__dict__[_BEFORE] = model.__dict__.get("save_pretrained")  # a packed model has its own
        model.__dict__["save_pretrained"] = MethodType(_save_pretrained, model)


def uninstall(model: nn.Module) -> None:
    """Let it be saved as before."""
    before = model.__dict__.pop(_BEFORE, None)
    model.__dict__.pop("save_pretrained", None)
    if before is not None:
        model.__dict__["save_pretrained"] = before


def copy_largest(model: nn.Module) -> Any:
    """The largest size of an elastic model, as a plain one that shares its weights."""
    from slimformer.sizes.elastic import Elastic, forget

    refuse_adapters(model)
    elastic = Elastic.of(model)
    with elastic.at(elastic.largest):
        plain: nn.Module = snapshot(model)
    forget(plain)
    return plain


def refuse_adapters(model: nn.Module) -> None:
    """Refuse a model that carries adapters of PEFT."""
    for path, module in model.named_modules():
        if hasattr(module, "get_base_layer"):
            raise SizeError(f"`{path}` carries an adapter, and sizes are nested in plain weights; merge it first")


def _save_pretrained(model: Any, *args: Any, **settings: Any) -> Any:
    return copy_largest(model).save_pretrained(*args, **settings)
