"""Everything that can be chosen by name, and where it lives.

A method, a distillation term, a number format, a task kind or a way of storing is registered by one line here: its
name, the dotted path of the object and a line of help. Reading the registry imports nothing of what it names, so it
costs nothing and stands below every layer. Packages outside register through the entry point group of a registry.
"""

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
        found: Any = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        return found


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
        found = {entry.name: Entry(entry.value) for entry in entry_points(group=self.group)}
        return {name: entry for name, entry in found.items() if name not in self._own}

    @property
    def names(self) -> tuple[str, ...]:
        """All names: slimformer's own in their order, then those of other packages, then those added here."""
        return tuple(dict.fromkeys([*self._own, *self._installed, *self._added]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added or name in self._installed

    def help(self, name: str) -> str:
        """The line of help; for an entry of another package the first line of its documentation."""
        if name in self._added:
            return self._added[name][1]
        entry = self._entry(name)
        return entry.help or (getattr(self.get(name), "__doc__", None) or "").partition("\n")[0]

    def get(self, name: str) -> T:
        """The object of that name, imported now if need be."""
        if name in self._added:
            return self._added[name][0]
        return cast("T", self._entry(name).load())

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


#: Ways of storing a model in a folder, in the order in which a folder is tried.
STORAGE: Registry[Any] = Registry(
    "storage",
    {
        "mask": ("slimformer.artifact.storage.mask:MaskStorage", "One bit per masked weight, on a base."),
        "packed": ("slimformer.artifact.storage.packed_checkpoint:PackedStorage", "Several codes to a byte."),
        "plain": ("slimformer.artifact.storage.plain:PlainStorage", "What `save_pretrained` writes."),
    },
    group="slimformer.storage",
)

#: What a model has to do: each kind of task owns everything about it.
KINDS: Registry[Any] = Registry(
    "kind",
    {
        "classification": (
            "slimformer.tasks.kinds.classification:Classification",
            "texts or pairs with one label each",
        ),
        "multi-label": ("slimformer.tasks.kinds.multi_label:MultiLabel", "texts or pairs with any number of labels"),
        "regression": ("slimformer.tasks.kinds.regression:Regression", "texts or pairs with one number each"),
        "tagging": ("slimformer.tasks.kinds.tagging:Tagging", "words with a tag each"),
        "multiple-choice": ("slimformer.tasks.kinds.multiple_choice:MultipleChoice", "questions with several choices"),
        "question-answering": (
            "slimformer.tasks.kinds.question_answering:QuestionAnswering",
            "answers that are spans of a context",
        ),
        "language-modelling": (
            "slimformer.tasks.kinds.language_modelling:LanguageModelling",
            "running text, predicted token by token",
        ),
        "last-word": ("slimformer.tasks.kinds.language_modelling:LastWord", "the last word of a passage"),
        "image-classification": (
            "slimformer.tasks.kinds.image_classification:ImageClassification",
            "images with one label each",
        ),
        "retrieval": ("slimformer.tasks.kinds.embedding:Retrieval", "texts that should find their like"),
        "similarity": (
            "slimformer.tasks.kinds.embedding:Similarity",
            "pairs of texts with a number each, compared by embeddings",
        ),
        "image-retrieval": ("slimformer.tasks.kinds.embedding:ImageRetrieval", "images that should find their like"),
    },
)
