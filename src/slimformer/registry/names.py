"""A table of names, each imported when it is first asked for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from slimformer.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One name of a registry.

    Args:
        target: Where the object lives, `package.module:attribute`.
        help: What it is, in one line.
    """

    target: str
    help: str = ""

    def load(self) -> Any:
        """Import the module and return the object."""
        module, _, attribute = self.target.partition(":")
        value: Any = import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
        return value


class Registry(Generic[T]):
    """Names of one sort of thing, each imported when it is first asked for.

    Args:
        noun: What an entry is called in messages, such as `method`.
        entries: Those of slimformer itself: name → (target, help).
        group: The entry point group of other packages' entries; the noun's plural unless given.
    """

    def __init__(self, noun: str, entries: Mapping[str, tuple[str, str]], group: str | None = None) -> None:
        self.noun = noun
        self.group = group or f"slimformer.{noun}s"
        self._own = {name: Entry(*entry) for name, entry in entries.items()}
        self._added: dict[str, tuple[T, str]] = {}

    @cached_property
    def _installed(self) -> dict[str, Entry]:
        """What installed packages register; a name of slimformer's own cannot be taken over."""
        return {
            entry.name: Entry(entry.value, f"From the package `{entry.dist.name if entry.dist else entry.module}`.")
            for entry in entry_points(group=self.group)
            if entry.name not in self._own
        }

    @property
    def own(self) -> tuple[str, ...]:
        """Names of slimformer's own entries; other packages are not looked for."""
        return tuple(self._own)

    @property
    def names(self) -> tuple[str, ...]:
        """All names: slimformer's own in their order, then those of other packages, then those added here."""
        return tuple(dict.fromkeys([*self._own, *self._installed, *self._added]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added or name in self._installed

    def help(self, name: str) -> str:
        """The line of help; nothing is imported for it."""
        return self._added[name][1] if name in self._added else self._entry(name).help

    def target(self, name: str) -> str:
        """Where an entry lives, `package.module:attribute`; nothing is imported."""
        return self._entry(name).target

    def get(self, name: str) -> T:
        """The object of that name, imported now if need be."""
        if name in self._added:
            return self._added[name][0]
        entry = self._entry(name)
        try:
            return cast("T", entry.load())
        except (ImportError, AttributeError) as error:
            if name in self._own:
                raise
            raise RegistryError(
                f"the {self.noun} `{name}` of another package cannot be loaded from `{entry.target}`: {error}; "
                "mend or remove that package"
            ) from error

    def add(self, name: str, value: T, help: str = "") -> None:
        """Register an object of this process, such as one defined in a script or a test."""
        if name in self:
            raise RegistryError(f"there is a {self.noun} `{name}` already; choose another name")
        self._added[name] = (value, help)

    def remove(self, name: str) -> None:
        """Take out what `add` put in."""
        if name not in self._added:
            raise RegistryError(f"no {self.noun} `{name}` was added here; only those added can be removed")
        del self._added[name]

    def _entry(self, name: str) -> Entry:
        entry = self._own.get(name) or self._installed.get(name)
        if entry is None:
            near = difflib.get_close_matches(name, self.names, n=1)
            hint = f" (do you mean `{near[0]}`?)" if near else ""
            raise RegistryError(f"there is no {self.noun} `{name}`{hint}; known: {', '.join(self.names)}")
        return entry
