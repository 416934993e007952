"""Nested sizes that share one set of weights: first rows or columns, blocks that may be skipped, outputs cut short."""

from __future__ import annotations

import inspect
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch.nn.utils import parametrize

from slimformer.errors import ViewError
from slimformer.views.view import View
from slimformer.views.width import Width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn


class SliceView(View):
    """Shows the first rows or columns of a weight; the rest costs nothing in the forward.

    Args:
        width: How many units are in use; share one `Width` among slices that must agree.
        axis: "rows" (outputs, with the bias) or "columns" (inputs).
        unit: Rows or columns per unit, such as the width of a head.
        chunks: Number of equal stretches that are cut alike, such as the 3 of a fused [q | k | v].
    """

    kind = "slice"

    def __init__(self, width: Width, axis: Literal["rows", "columns"] = "rows", unit: int = 1, chunks: int = 1) -> None:
        super().__init__()
        self.width = width
        self.axis = axis
        self.unit = unit
        self.chunks = chunks

    @property
    def size(self) -> int:
        """Rows or columns shown now."""
        return self.width.value * self.unit * self.chunks

    def forward(self, weight: Tensor) -> Tensor:
        """Cut the weight."""
        dim = 0 if self.axis == "rows" else 1
        if self.chunks == 1:
            return weight.narrow(dim, 0, self.size)
        stretches: Tensor = weight.unflatten(dim, (self.chunks, -1))
        return stretches.narrow(dim + 1, 0, self.width.value * self.unit).flatten(dim, dim + 1)

    def cut(self, codes: Tensor, scales: Tensor, group_size: int | None) -> tuple[Tensor, Tensor]:
        """Cut a quantized weight: its codes, [out, in], and the scales of what is left."""
        codes = self(codes)
        if self.axis == "rows":
            return codes, scales if len(scales) == 1 else self(scales)
        return codes, scales if group_size is None else scales[:, : -(-codes.shape[1] // group_size)]

    def spec(self) -> dict[str, Any]:
        """Settings of this view; the width in use travels in the state dict."""
        return {
            "kind": self.kind,
            "axis": self.axis,
            "unit": self.unit,
            "chunks": self.chunks,
            "full": self.width.full,
        }

    def after(self, earlier: View) -> str | None:
        """A slice may follow anything but a slice of the same axis."""
        if isinstance(earlier, SliceView) and earlier.axis == self.axis:
            return f"its {self.axis} are sliced already; change the width of that slice instead"
        return None

    def check(self, shape: Sequence[int], where: str) -> None:
        """Raise where the full width does not match a weight of this shape."""
        size = shape[0 if self.axis == "rows" else 1]
        full = self.width.full * self.unit * self.chunks
        if size != full:
            raise ViewError(
                f"a slice of {self.width.full} x {self.unit} x {self.chunks} = {full} {self.axis} does not fit "
                f"`{where}`, which has {size}"
            )

    def extra_repr(self) -> str:
        """Show the settings in the model's print-out."""
        return f"axis={self.axis!r}, unit={self.unit}, chunks={self.chunks}"


_FOLLOWED = "_slimformer_followed"
_SKIP = "_slimformer_skip"
_CUT = "_slimformer_cut"


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


class Skip(NamedTuple):
    """How a block is skipped.

    Args:
        depth: 1 where the block runs, 0 where it is skipped.
        returns: What it returns after the hidden states, named by its arguments; None for hidden states alone.
        layer: Its number in a cache of keys and values, if it writes to one.
    """

    depth: Width
    returns: tuple[str | None, ...] | None
    layer: int | None


def skip(module: nn.Module, how: Skip) -> None:
    """Let a block hand on its input, and compute nothing, wherever its depth is 0."""
    # On the instance, not in a class of its own: Transformers finds the outputs it records by the class of a block.
    module.__dict__[_SKIP] = how
    module.__dict__["forward"] = MethodType(_forward, module)


def skip_of(module: nn.Module) -> Skip | None:
    """How a module is skipped; None where it always runs."""
    return module.__dict__.get(_SKIP)


def unskip(module: nn.Module) -> None:
    """Let a block always run again."""
    if module.__dict__.pop(_SKIP, None) is not None:
        del module.__dict__["forward"]


def _forward(module: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
    how: Skip = module.__dict__[_SKIP]
    if how.depth.value:
        return type(module).forward(module, hidden, *args, **kwargs)
    _pass_cache(how, hidden, (*args, *kwargs.values()))
    if how.returns is None:
        return hidden
    bound = inspect.signature(type(module).forward).bind(module, hidden, *args, **kwargs).arguments
    return (hidden, *(None if name is None else bound.get(name) for name in how.returns))


def _pass_cache(how: Skip, hidden: Tensor, inputs: Sequence[Any]) -> None:
    """Put one number per token into a block's place in the cache.

    Transformers asks some block of the cache how many tokens there are, and crops and reorders all of them.
    """
    from transformers import Cache

    for cache in inputs:
        if isinstance(cache, Cache) and how.layer is not None:
            mark = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], 1)
            cache.update(mark, mark, how.layer)


def is_mark(keys: Tensor) -> bool:
    """Whether the keys of a cache are those of a block that was skipped: one number per token."""
    return keys.shape[1] == keys.shape[-1] == 1


def cut(module: nn.Module, width: Width) -> None:
    """Let a bare model show only the first dimensions of its last hidden states.

    Pooling treats every dimension by itself, so embeddings are cut alike (Matryoshka, arXiv 2205.13147).
    """
    module.__dict__[_CUT] = width
    module.__dict__["forward"] = MethodType(_cut_forward, module)


def cut_of(module: nn.Module) -> Width | None:
    """How many dimensions a bare model shows; None for all."""
    return module.__dict__.get(_CUT)


def uncut(module: nn.Module) -> None:
    """Let a bare model show all of its dimensions again."""
    if module.__dict__.pop(_CUT, None) is not None:
        del module.__dict__["forward"]


def _cut_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    outputs = type(module).forward(module, *args, **kwargs)
    width: Width = module.__dict__[_CUT]
    if isinstance(outputs, tuple):
        return (outputs[0][..., : width.value], *outputs[1:])
    outputs.last_hidden_state = outputs.last_hidden_state[..., : width.value]
    return outputs


def settle(module: nn.Module) -> None:
    """Stop following and keep the values of this moment."""
    values = {name: getattr(module, name) for name in followed(module)}
    unfollow(module)
    module.__dict__.update(values)
    how = skip_of(module)
    if how is not None and how.depth.value:
        unskip(module)
    elif how is not None:
        skip(module, how._replace(depth=Width(1, 0, least=0)))
    width = cut_of(module)
    if width is not None:
        cut(module, Width(width.full, width.value))


def unfollow(module: nn.Module) -> None:
    """Stop following and show the plain values again; a block that may be skipped is left alone."""
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
