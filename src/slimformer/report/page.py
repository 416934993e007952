"""One page that needs nothing but itself: no scripts, no fonts, no pictures from elsewhere."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING

from slimformer.artifact.staging import hidden_folder
from slimformer.errors import ConfigError
from slimformer.files import as_path, read_limited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Table:
    """A table; the first column is text, the others are numbers.

    Args:
        title: What it shows.
        columns: Heads of the columns.
        rows: Cells as text, row by row.
        note: What a reader should know to read it right.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Figure:
    """A plot, as the SVG text that `slimformer.report.plots` returns."""

    title: str
    svg: str
    caption: str = ""
    kind: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Facts:
    """Names and values: settings, versions, the machine."""

    title: str
    values: Mapping[str, str]
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True)
class Page:
    """A report: a title, a sentence or two, and blocks one below the other."""

    title: str
    lead: str
    blocks: Sequence[Table | Figure | Facts]

    def html(self) -> str:
        """The page as HTML."""
        from jinja2 import Environment, StrictUndefined

        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        template = files("slimformer.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
        return environment.from_string(template).render(page=self)


#: What stands before the sum at the end of a page.
SEAL = b"<!-- slimformer, sha256 of what stands above: "
#: No page of ours has so many bytes.
LARGEST = 64 * 2**20


def write_page(page: Page, path: str | Path) -> Path:
    """Write a page, whole or not at all; only a page of ours may have been there before."""
    target = as_path(path)
    check_page(target)
    content = page.html().encode()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hidden_folder(target) as folder:
            draft = folder / target.name
            draft.write_bytes(content + _seal(content))
            draft.replace(target)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"the report `{path}` cannot be written: {reason}; give another file") from error
    return target


def check_page(path: Path) -> None:
    """Refuse to replace a file that is not a page as it was written, and a link, which is not what it leads to."""
    if os.path.lexists(path) and not _is_page(path):
        raise ConfigError(
            f"`{path}` exists and is no report as slimformer wrote it, so it is not replaced; move it away, or choose "
            "another file"
        )


def _is_page(path: Path) -> bool:
    try:
        content, seal, rest = (b"", b"", b"") if path.is_symlink() else read_limited(path, LARGEST).rpartition(SEAL)
    except OSError:
        return False
    return bool(seal) and _seal(content) == seal + rest


def _seal(content: bytes) -> bytes:
    return SEAL + f"{hashlib.sha256(content).hexdigest()} -->\n".encode()
