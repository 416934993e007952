"""How much of a model is in use: one value per model, right in every thread, copy and recomputation."""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from slimformer.errors import ViewError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from contextvars import Token

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: Extents in force in the current thread or task, above what the instances hold.
_here: ContextVar[Mapping[Extent, tuple[int, ...]]] = ContextVar("slimformer_extents", default={})  # noqa: B039


class Extent:
    """What is in use of every nested dimension of one model, as one value that changes as a whole.

    A dimension is the neurons of a block, its heads, or the block itself; `add` makes one and returns the `Width` by
    which slices read it. The value is state of this instance. `at` changes it for the current thread only, so that
    one model can serve several sizes at once. What runs elsewhere or later on behalf of a `with` block takes its
    value along: a function for another thread by `carried`, a recomputation by `checkpoint_contexts`, a copy of the
    model by itself.
    """

    def __init__(self) -> None:
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._value: tuple[int, ...] = ()

    def add(self, full: int, least: int = 1) -> Width:
        """A further dimension of `full` units, all of them in use, of which there are always `least`."""
        return Width(full, least=least, extent=self)

    @property
    def value(self) -> tuple[int, ...]:
        """Units in use here and now, dimension by dimension."""
        return _here.get().get(self, self._value)

    @property
    def full(self) -> tuple[int, ...]:
        """Units there are, dimension by dimension."""
        return tuple(full for _, full in self._ranges)

    def set(self, value: Sequence[int]) -> None:
        """Change the value for all threads."""
        self._value = self._checked(value)

    @contextmanager
    def at(self, value: Sequence[int]) -> Iterator[Extent]:
        """Change the value for the current thread inside a `with` block."""
        with _Extents({**_here.get(), self: self._checked(value)}):
            yield self

    def __deepcopy__(self, memo: dict[int, Any]) -> Extent:
        """A copy holds the value in force where it is made, and goes its own way from then on."""
        copied = memo[id(self)] = Extent()
        copied._ranges, copied._value = self._ranges, self.value
        return copied

    def _add(self, least: int, full: int) -> int:
        self._ranges += ((least, full),)
        self._value += (full,)
        return len(self._ranges) - 1

    def _checked(self, value: Sequence[int]) -> tuple[int, ...]:
        for units, (least, full) in zip(value, self._ranges, strict=True):
            if not least <= units <= full:
                raise ViewError(f"width {units} is impossible; choose from {least} to {full}")
        return tuple(value)


class Width(nn.Module):
    """How many of `full` units (neurons, heads) are in use; shared by the slices that must agree.

    Args:
        full: Units there are.
        value: Units in use at first; all, if none is given.
        least: Units that are always in use.
        extent: The value of the model that this is one dimension of; one of its own, if none is given.
    """

    def __init__(self, full: int, value: int | None = None, least: int = 1, extent: Extent | None = None) -> None:
        super().__init__()
        self.full = full
        self.extent = Extent() if extent is None else extent
        self.index = self.extent._add(least, full)
        self.set(full if value is None else value)

    @property
    def value(self) -> int:
        """The number of units in use here and now."""
        return self.extent.value[self.index]

    def set(self, value: int) -> None:
        """Change the number for all threads."""
        self.extent.set(self._replaced(self.extent._value, value))

    def at(self, value: int) -> AbstractContextManager[Extent]:
        """Change the number for the current thread inside a `with` block."""
        return self.extent.at(self._replaced(self.extent.value, value))

    def __deepcopy__(self, memo: dict[int, Any]) -> Width:
        """A copy holds the number in force where it is made, and goes its own way from then on."""
        copied = memo[id(self)] = Width.__new__(Width)
        nn.Module.__init__(copied)
        copied.full, copied.index = self.full, self.index
        copied.extent = copy.deepcopy(self.extent, memo)
        return copied.train(self.training)

    def get_extra_state(self) -> Tensor:
        """Put the number into state dicts."""
        return torch.tensor(self.extent._value[self.index])

    def set_extra_state(self, state: Tensor) -> None:
        """Take the number from state dicts."""
        self.set(int(state))

    def extra_repr(self) -> str:
        """Show the number in the model's print-out."""
        return f"{self.value} of {self.full}"

    def _replaced(self, extent: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*extent[: self.index], value, *extent[self.index + 1 :])


def carried(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function that runs with the widths of this moment, in whatever thread it is called.

    Example:
        >>> with width.at(3), ThreadPoolExecutor() as pool:
        ...     pool.map(carried(model), batches)
    """
    extents = _here.get()

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with _Extents(extents):
            return function(*args, **kwargs)

    return run


def checkpoint_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The `context_fn` of `torch.utils.checkpoint`: what is recomputed has the widths of the first computation.

    The backward pass may run after a `with` block has ended, and on a GPU it runs in another thread.
    """
    return nullcontext(), _Extents(_here.get())


def enable_checkpointing(model: Any, **settings: Any) -> None:
    """Let a model of Transformers recompute activations in the backward pass, at the widths of the forward pass."""
    settings = {**settings, "use_reentrant": False, "context_fn": checkpoint_contexts}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


class _Extents:
    """Extents in force inside a `with` block, which may be entered again: one graph may be recomputed several times."""

    def __init__(self, extents: Mapping[Extent, tuple[int, ...]]) -> None:
        self._extents = extents
        self._tokens: list[Token[Mapping[Extent, tuple[int, ...]]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_here.set(self._extents))

    def __exit__(self, *error: object) -> None:
        _here.reset(self._tokens.pop())
