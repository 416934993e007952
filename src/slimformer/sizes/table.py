"""The tables beside an elastic model: which sizes are nested in it, and which allocations have names of their own.

Read without torch.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from slimformer.errors import ArtifactError, SizeError, describe, shorten
from slimformer.files import JsonError, parse_json, read_limited
from slimformer.sizes.naming import Naming
from slimformer.sizes.size import MOST_SIZES, SHARES, Size, check_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from slimformer.sizes.elastic import Elastic

#: The file that tells the sizes.
SIZES = "sizes.json"
#: The file that gives allocations names of their own.
PUBLISHED = "published.json"
#: A table of sizes is a few kilobytes, with the order of all neurons some megabytes.
MAX_BYTES = 64 * 1024 * 1024


#: Checks a value that lies under a key, and returns it.
_Check: TypeAlias = "Callable[[Any, str], Any]"
#: What an object may hold.
_Object: TypeAlias = "Mapping[str, _Check]"
#: What a published size may be called.
_NAME = re.compile(r"[A-Za-z][\w.-]{0,79}")


@dataclass(frozen=True)
class SizesRecord:
    """What is nested in a model.

    Args:
        sizes: The name of each, and its shares where they are not 1.
        heads: Whether heads are nested.
        skip: Whether blocks may be skipped.
        order: Each neuron's number in the base, block by block; None where the order is the base's.
    """

    sizes: tuple[dict[str, Any], ...]
    heads: bool = False
    skip: bool = False
    order: list[list[int]] | None = None

    @classmethod
    def of(cls, elastic: Elastic, order: list[list[int]] | None = None) -> SizesRecord:
        """What is nested in a model in memory."""
        return cls(
            sizes=tuple(_spelled_out(size) for size in elastic.sizes),
            heads=any(block.heads is not None for block in elastic.blocks),
            skip=any(block.depth is not None for block in elastic.blocks),
            order=order,
        )

    def nested(self) -> list[Size]:
        """The sizes."""
        return [Size(**size) for size in self.sizes]

    def naming(self, blocks: int) -> Naming:
        """What names mean in a model of so many blocks, any of which may be skipped where one may."""
        sizes = tuple(self.nested())
        check_sizes(sizes)
        return Naming(sizes, (self.skip or any(size.depth < 1 for size in sizes),) * blocks)

    def to_json(self) -> str:
        """As a file holds it; what is as it is by default is left out."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        kept = {each.name: values[each.name] for each in fields(self) if values[each.name] != each.default}
        return json.dumps(kept, separators=(",", ":"), allow_nan=False)

    def nest(self, model: nn.Module) -> Elastic:
        """Nest the same in a model."""
        from slimformer.sizes.elastic import make_elastic

        return make_elastic(model, self.nested(), heads=self.heads, skip=self.skip)


@dataclass(frozen=True)
class PublishedRecord:
    """An allocation with a name of its own: what it costs, and how good it is where that was measured.

    Args:
        name: What it is called.
        allocation: One size for each block, 0 for a block that is skipped.
        cost: Parameters, bytes, and FLOPs at a length.
        quality: Metrics as measured.
    """

    name: str
    allocation: str
    cost: dict[str, float] = field(default_factory=dict)
    quality: dict[str, float] = field(default_factory=dict)

    @classmethod
    def make(cls, name: str, allocation: str, sizes: Sequence[str]) -> PublishedRecord:
        """A record of a name that is none of a size."""
        if not _NAME.fullmatch(name):
            raise SizeError(
                f"`{name}` is no name for a size; give letters, digits, dots and hyphens, beginning with a letter"
            )
        if name.upper() in {size.upper() for size in sizes}:
            raise SizeError(f"`{name}` is a size of the model already; give another name")
        return cls(name=name, allocation=allocation)


def read_published(folder: Path) -> list[PublishedRecord]:
    """The published sizes of a folder; none where it has no table of them."""
    path = folder / PUBLISHED
    if not path.is_file():
        return []
    (records,) = _read(path, {"published": _several(_PUBLISHED)}, ("published",)).values()
    return [PublishedRecord(**record) for record in records]


def name_published(folder: Path, naming: Naming) -> None:
    """Give the published sizes of a folder their names."""
    for record in read_published(folder):
        checked = PublishedRecord.make(record.name, record.allocation, naming.names)
        naming.published[record.name] = naming.allocation(checked.allocation.split(","))


def read_naming(folder: Path, blocks: int) -> Naming:
    """What names of sizes mean in the model of a folder, of so many blocks."""
    file = SIZES
    try:
        naming = read_sizes(folder).naming(blocks)
        file = PUBLISHED
        name_published(folder, naming)
    except SizeError as error:
        raise ArtifactError(f"`{folder / file}` does not fit the model: {error}") from error
    return naming


def write_published(records: list[PublishedRecord]) -> bytes:
    """The table of published sizes as a file holds it."""
    table = {"published": [asdict(record) for record in records]}
    return f"{json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False)}\n".encode()


def read_sizes(folder: Path) -> SizesRecord:
    """What is nested in the model of a folder."""
    content = _read(folder / SIZES, _SIZES, ("sizes",))
    return SizesRecord(**{**content, "sizes": tuple(content["sizes"])})


def _spelled_out(size: Size) -> dict[str, Any]:
    return {name: value for name, value in vars(size).items() if name in ("name", "neurons") or value != 1}


class _ProblemError(ValueError):
    """What is wrong with a table, as what follows the name of its file."""


def _wrong(key: str, expected: str, value: Any) -> _ProblemError:
    return _ProblemError(f"has a wrong `{key or 'content'}`: give {expected}, seen {shorten(describe(value), 60)}")


def _read(path: Path, known: _Object, needed: Sequence[str]) -> dict[str, Any]:
    try:
        content: dict[str, Any] = _checked_object(known, needed)(parse_json(read_limited(path, MAX_BYTES)), "")
    except (_ProblemError, JsonError) as error:
        problem = f"is not valid JSON: {error}" if isinstance(error, JsonError) else error
        raise ArtifactError(f"`{path}` {problem}; copy the artifact again") from error
    except OSError as error:
        raise ArtifactError(f"`{path}` cannot be read: {error.strerror}; copy the artifact again") from error
    return content


def _checked_object(known: _Object, needed: Sequence[str]) -> _Check:
    """Objects with such keys and no others."""

    def check(value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(key, "an object", value)
        inside = f"{key}." if key else ""
        for name in value:
            if name not in known:
                raise _ProblemError(f"has the unknown key `{inside}{shorten(name, 60)}`")
        for name in needed:
            if name not in value:
                raise _ProblemError(f"lacks the key `{inside}{name}`")
        return {name: known[name](each, f"{inside}{name}") for name, each in value.items()}

    return check


def _several(each: _Check, least: int = 0, most: int | None = None) -> _Check:
    """Lists of so many."""

    def check(value: Any, key: str) -> list[Any]:
        if not isinstance(value, list) or len(value) < least or (most is not None and len(value) > most):
            raise _wrong(key, f"a list of {least} to {most}" if most else "a list", value)
        return [each(item, f"{key}.{index}") for index, item in enumerate(value)]

    return check


def _one(expected: str, fits: Callable[[Any], bool]) -> _Check:
    """Values that fit."""

    def check(value: Any, key: str) -> Any:
        if not fits(value):
            raise _wrong(key, expected, value)
        return value

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_order(value: Any) -> bool:
    rows = value if isinstance(value, list) else [] if value is None else [None]
    return all(isinstance(row, list) and all(type(number) is int for number in row) for row in rows)


_TEXT = _one("a text", lambda value: isinstance(value, str) and bool(value))
_FLAG = _one("true or false", lambda value: isinstance(value, bool))
_SHARE = _one("a share above 0, 1 at most", lambda value: _is_number(value) and 0 < value <= 1)
_NUMBERS = _one("an object of numbers", lambda value: isinstance(value, dict) and all(map(_is_number, value.values())))
_SIZE = _checked_object({"name": _TEXT, **dict.fromkeys(SHARES, _SHARE)}, ("name", "neurons"))
_SIZES: _Object = {
    "sizes": _several(_SIZE, 1, MOST_SIZES),
    "heads": _FLAG,
    "skip": _FLAG,
    "order": _one("a list of lists of numbers, or null", _is_order),
}
_PUBLISHED = _checked_object(
    {
        "name": _one("a name", lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None),
        "allocation": _TEXT,
        "cost": _NUMBERS,
        "quality": _NUMBERS,
    },
    ("name", "allocation"),
)
