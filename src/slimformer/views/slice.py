"""The first rows or columns of a weight, and how many: nested sizes that share one set of weights."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from slimformer.errors import ViewError
from slimformer.views.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from contextvars import Token

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: Widths in force in the current thread or task, above what the instances hold.
_here: ContextVar[Mapping[Width, int]] = ContextVar("slimformer_widths", default={})  # noqa: B039


class Width(nn.Module):
    """How many of `full` units (neurons, heads) are in use; shared by the slices that must agree.

    The number is state of this instance. `at` changes it for the current thread only, so that one model
    can serve several widths at once. What runs elsewhere or later on behalf of a `with` block takes its
    widths along: a function for another thread by `carried`, a recomputation by `checkpoint_contexts`, a
    copy of the model by itself.
    """

    def __init__(self, full: int, value: int | None = None) -> None:
        super().__init__()
        self.full = full
        self._value = full
        self.set(full if value is None else value)

    @property
    def value(self) -> int:
        """The number of units in use here and now."""
        return _here.get().get(self, self._value)

    def set(self, value: int) -> None:
        """Change the number for all threads."""
        self._value = self._checked(value)

    @contextmanager
    def at(self, value: int) -> Iterator[Width]:
        """Change the number for the current thread inside a `with` block."""
        with _Widths({**_here.get(), self: self._checked(value)}):
            yield self

    def __deepcopy__(self, memo: dict[int, Any]) -> Width:
        """A copy holds the number in force where it is made, and goes its own way from then on."""
        copied = memo[id(self)] = Width(self.full, self.value)
        return copied.train(self.training)

    def get_extra_state(self) -> Tensor:
        """Put the number into state dicts."""
        return torch.tensor(self._value)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the number from state dicts."""
        self.set(int(state))

    def extra_repr(self) -> str:
        """Show the number in the model's print-out."""
        return f"{self.value} of {self.full}"

    def _checked(self, value: int) -> int:
        if not 1 <= value <= self.full:
            raise ViewError(f"width {value} is impossible; choose from 1 to {self.full}")
        return value


def carried(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function that runs with the widths of this moment, in whatever thread it is called.

    Example:
        >>> with width.at(3), ThreadPoolExecutor() as pool:
        ...     pool.map(carried(model), batches)
    """
    widths = _here.get()

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with _Widths(widths):
            return function(*args, **kwargs)

    return run


def checkpoint_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The `context_fn` of `torch.utils.checkpoint`: what is recomputed has the widths of the first computation.

    The backward pass may run after a `with` block has ended, and on a GPU it runs in another thread.
    """
    return nullcontext(), _Widths(_here.get())


def enable_checkpointing(model: Any, **settings: Any) -> None:
    """Let a model of Transformers recompute activations in the backward pass, at the widths of the forward pass."""
    settings = {**settings, "use_reentrant": False, "context_fn": checkpoint_contexts}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


class _Widths:
    """Widths in force inside a `with` block, which may be entered again: one graph may be recomputed several times."""

    def __init__(self, widths: Mapping[Width, int]) -> None:
        self._widths = widths
        self._tokens: list[Token[Mapping[Width, int]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_here.set(self._widths))

    def __exit__(self, *error: object) -> None:
        _here.reset(self._tokens.pop())


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
