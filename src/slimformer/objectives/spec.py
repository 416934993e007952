"""Objectives as a user writes them: `relations:1, logits:0.5, hidden[all]:0.1`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slimformer.config import LARGEST
from slimformer.errors import ConfigError, RegistryError
from slimformer.registry import TERMS

if TYPE_CHECKING:
    from slimformer.objectives.objective import Weighted
    from slimformer.objectives.terms import Models
    from slimformer.registry import Registry

#: All ordered pairs of queries, keys and values, whose relations can be learned.
ALL_PAIRS = tuple(f"{one}{other}" for one in "qkv" for other in "qkv")
_ENTRY = re.compile(r"(?P<name>[A-Za-z][\w-]*)\s*(?:\[(?P<options>[^\[\]]*)\])?\s*(?::\s*(?P<weight>\S+))?")
#: An entry as it should be, for messages.
EXAMPLE = "`relations:1, hidden[all]:0.1`"


@dataclass(frozen=True)
class TermSpec:
    """One term as it was written.

    Args:
        name: Its name in the registry.
        weight: Its weight.
        values: What stands in brackets without a name.
        options: What stands in brackets as `name=value`.
    """

    name: str
    weight: float = 1.0
    values: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The term without its weight."""
        brackets = ",".join([*self.values, *(f"{name}={value}" for name, value in self.options.items())])
        return f"{self.name}[{brackets}]" if brackets else self.name

    def __str__(self) -> str:
        return f"{self.label}:{repr(self.weight).removesuffix('.0')}"


def parse_terms(terms: str | Mapping[str, Any] | Sequence[Any]) -> list[TermSpec]:
    """Read an objective.

    Args:
        terms: `name[options]:weight` with commas between; a list of these; or name and weight as a mapping. A weight
            that is left out is 1.

    Example:
        >>> [str(term) for term in parse_terms({"relations": 1, "hidden[all]": 0.1})]
        ['relations:1', 'hidden[all]:0.1']
    """
    specs = [parse_entry(entry, place) for entry, place in _entries(terms)]
    if not specs:
        raise ConfigError(f"no term is given; write terms such as {EXAMPLE}")
    labels = [spec.label for spec in specs]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"`{label}` is there twice; keep one of them, with the weights added")
    return specs


def format_terms(specs: Sequence[TermSpec]) -> str:
    """An objective on one line, as `parse_terms` reads it."""
    return ", ".join(map(str, specs))


def build_terms(
    specs: Sequence[TermSpec],
    models: Models,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    variants: Sequence[str] = ("clean",),
    labelled: bool = False,
) -> list[Weighted]:
    """Make terms for two models, and refuse what cannot be compared.

    Args:
        specs: The terms as they were written.
        models: Teacher and student.
        defaults: Options of a term, by its name, where none are written.
        variants: What the method prepares of its inputs.
        labelled: Whether the batches have labels.
    """
    from slimformer.objectives.objective import Weighted

    models = replace(models, variants=tuple(variants))
    built = []
    for spec in specs:
        term_class = TERMS.get(spec.name)
        if term_class.variant not in variants:
            raise ConfigError(
                f"term `{spec.label}` learns from {term_class.variant} inputs, which this method does not prepare; "
                "leave it out"
            )
        if term_class.labelled and not labelled:
            raise ConfigError(f"term `{spec.label}` needs labels, and a corpus has none; leave it out")
        source = f"term `{spec.label}`: "
        checked = read_options(spec, term_class, (defaults or {}).get(spec.name, {}), source)
        built.append(Weighted(spec.label, spec.weight, _construct(term_class, models, checked, spec)))
    return built


def _construct(term_class: Any, models: Models, options: Any, spec: TermSpec) -> Any:
    try:
        return term_class(models, options)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if f"`{spec.name}`" in text else f"term `{spec.label}`: {text}") from error


def read_options(spec: TermSpec, term_class: Any, defaults: Mapping[str, Any] | None = None, source: str = "") -> Any:
    """What stands in the brackets of an entry, checked by the `Options` of its class.

    Args:
        spec: The entry.
        term_class: Its class, with `Options` and `positional`.
        defaults: Options where none are written.
        source: How errors begin.
    """
    return term_class.Options.make({**(defaults or {}), **_options(spec, term_class, source)}, source=source)


def _options(spec: TermSpec, term_class: Any, source: str) -> dict[str, Any]:
    if spec.values and term_class.positional is None:
        known = ", ".join(f"`{name}=…`" for name in term_class.Options.model_fields) or "none"
        raise ConfigError(f"{source}`{spec.values[0]}` is no option; known: {known}")
    if not spec.values:
        return dict(spec.options)
    several = spec.values[0] if len(spec.values) == 1 and not _takes_several(term_class) else spec.values
    return {term_class.positional: several, **spec.options}


def _takes_several(term_class: Any) -> bool:
    annotation = str(term_class.Options.model_fields[term_class.positional].annotation)
    return "tuple" in annotation


def _entries(terms: Any) -> list[tuple[str, str]]:
    """The entries, each with where it stands."""
    if isinstance(terms, str):
        return _split(terms)
    if isinstance(terms, Mapping):
        return [(f"{name}:{weight}", f"`{name}`") for name, weight in terms.items()]
    if isinstance(terms, Sequence):
        entries: list[tuple[str, str]] = []
        for number, each in enumerate(terms, start=1):
            entries += _entries(each) if isinstance(each, Mapping) else [(str(each), f"entry {number}")]
        return entries
    raise ConfigError(f"terms are `{terms}`; write them such as {EXAMPLE}")


def _split(text: str) -> list[tuple[str, str]]:
    """Cut at the commas outside brackets."""
    entries, start, depth = [], 0, 0
    for at, character in enumerate(text + ","):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        if character == "," and depth <= 0:
            entry = text[start:at]
            place = start + len(entry) - len(entry.lstrip()) + 1
            entries.append((entry.strip(), f"character {place}"))
            start = at + 1
    if depth > 0:
        entry = text[start:]
        raise ConfigError(f"`{entry.strip()}` at character {start + 1} opens a bracket that is not closed; add `]`")
    if entries and not entries[-1][0]:
        entries.pop()  # a comma at the end
    return entries


def parse_entry(entry: str, place: str = "", registry: Registry[Any] = TERMS) -> TermSpec:
    """Read one entry, `name[options]:weight`.

    Args:
        entry: The entry.
        place: Where it stands, for messages; nothing where it stands alone.
        registry: What it may name.
    """
    match = _ENTRY.fullmatch(entry.strip())
    at = f"`{entry}` at {place}" if place else f"`{entry}`"
    if match is None:
        raise ConfigError(f"{at} is no {registry.noun}; write it as `name:weight` or `name[options]:weight`")
    name, weight = match["name"], match["weight"]
    if name not in registry:
        try:
            registry.get(name)
        except RegistryError as error:
            raise ConfigError(f"{place}: {error}" if place else str(error)) from error
    values: list[str] = []
    options: dict[str, Any] = {}
    for part in (match["options"] or "").split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if equals:
            options[key] = value
        elif key:
            values.append(key)
    return TermSpec(name, 1.0 if weight is None else _weight(weight, at), tuple(values), options)


def _weight(text: str, at: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(f"the weight `{text}` of {at} is no number from 0; give one such as 0.5")
    if weight > LARGEST:
        raise ConfigError(f"the weight `{text}` of {at} is too large; give {LARGEST:g} at most")
    return weight
