"""Size attributes that follow a width, for modules whose forward reads them instead of the weight.

`Conv1D` shapes its output by `nf`, GPT-2 splits queries from keys by `split_size`. While a slice is on,
such an attribute is a property that reads the width, so each thread sees its own; the plain value lies
untouched underneath and shows again when the slice is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from torch import nn

    from slimformer.views.slice import Width

_FOLLOWED = "_slimformer_followed"


def follow(module: nn.Module, attribute: str, width: Width, unit: int) -> None:
    """Make `module.attribute` read `width x unit` from now on."""
    # A parametrized module already has a class of its own; others get one.
    if not parametrize.is_parametrized(module) and not followed(module):
        cls = type(module)
        module.__class__ = type(f"Following{cls.__name__}", (cls,), {})
    # The width is kept as a plain attribute: it is registered, and saved, with the slices it belongs to.
    module.__dict__.setdefault(_FOLLOWED, {})[attribute] = (width, unit)
    setattr(type(module), attribute, _property(attribute))


def followed(module: nn.Module) -> dict[str, tuple[Width, int]]:
    """The attributes of a module that follow a width: name → (width, unit)."""
    found: dict[str, tuple[Width, int]] = module.__dict__.get(_FOLLOWED, {})
    return found


def settle(module: nn.Module) -> None:
    """Stop following and keep the values of this moment."""
    values = {name: getattr(module, name) for name in followed(module)}
    unfollow(module)
    module.__dict__.update(values)


def unfollow(module: nn.Module) -> None:
    """Stop following and show the plain values again."""
    names = followed(module)
    if not names:
        return
    cls = type(module)
    if parametrize.is_parametrized(module):
        # Copies share the class (see `stack._remove`), so the property leaves with a class of its own.
        own = {key: value for key, value in cls.__dict__.items() if key not in names}
        module.__class__ = type(cls.__name__, cls.__bases__, own)
    else:
        module.__class__ = cls.__bases__[0]
    del module.__dict__[_FOLLOWED]


def _property(attribute: str) -> property:
    def read(self: Any) -> int:
        width, unit = self.__dict__[_FOLLOWED][attribute]
        size: int = width.value * unit
        return size

    return property(read)
