"""Flags that several commands share, and results as people or machines want them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from slimformer.errors import visible
from slimformer.models.settings import Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_json(result: Mapping[str, Any]) -> None:
    """Write one JSON object, and nothing else, to standard output; of several processes only the first does."""
    if not _speaks():
        return
    sys.stdout.write(json.dumps(result, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a title and a table; the first column is text and the others are numbers, set to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for number, column in enumerate(columns):
        table.add_column(Text(visible(column)), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        # As text, so that `[red]` or `[link=…]` in a name stays what it is.
        table.add_row(*(Text(visible(cell)) for cell in row))
    console = Console(highlight=False)
    # A number cut short is worse than a line that wraps: the table is as wide as it needs to be.
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.width = max(console.width, needed)
    console.print(Text(visible(title)))
    console.print(table)


def print_line(text: str) -> None:
    """Write one line to standard output; of several processes only the first does."""
    if not _speaks():
        return
    sys.stdout.write(f"{visible(text)}\n")


def print_notes(notes: Sequence[str]) -> None:
    """Write what was done to data or model that may not be expected, to standard error."""
    for note in notes if _speaks() else ():
        sys.stderr.write(f"note: {visible(note)}\n")


def _speaks() -> bool:
    return os.environ.get("RANK", "0") == "0"


def human_bytes(count: int) -> str:
    """A size with a unit people read: 86.6 MiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


@dataclass(frozen=True)
class BaseFlags:
    """The flags of every command that may need the base of a mask."""

    base: Annotated[str | None, Parameter(name="--base", help="Where the base of a mask is now, if it has moved.")] = (
        None
    )
    cast_base: Annotated[
        bool,
        Parameter(
            name="--cast-base",
            negative="",
            help="Take a base that was cast to 16 bits since; answers change a little.",
        ),
    ] = False


Check = Annotated[
    bool,
    Parameter(
        name="--check",
        help="Compare answers with those recorded at saving; `--no-check` skips this and nothing else, sums are "
        "always compared.",
    ),
]


@dataclass(frozen=True)
class LoadFlags(BaseFlags):
    """The flags of every command that loads a model to use it; each is an argument of the function it calls."""

    check: Check = True


Size = Annotated[
    str | None,
    Parameter(
        name="--size",
        help="Size of an elastic model: a name such as `S`, a share such as 0.25, or one for each block joined by "
        "commas, 0 for a block that is skipped; by default the largest.",
    ),
]


@dataclass(frozen=True)
class SizeFlags(LoadFlags):
    """The same for commands that can use one size of an elastic model."""

    size: Size = None


@dataclass(frozen=True)
class RouteFlags(SizeFlags):
    """The same for commands that can choose a size for each request."""

    route: Annotated[
        str | None,
        Parameter(
            name="--route",
            help="File of `slimformer route`, which chooses a size of an elastic model for each request.",
        ),
    ] = None


Engine = Annotated[
    str | None,
    Parameter(
        name="--engine",
        help="What runs the model: `torch`, the default, or `native`, compiled kernels.",
    ),
]


@dataclass(frozen=True)
class AskFlags(RouteFlags):
    """The same for commands that ask a model, whatever runs it."""

    engine: Engine = None


StoreAs = Annotated[
    Store | None,
    Parameter(
        name="--store",
        help="Type of the weights in the file: `float32`, or `half` (float16) or `bfloat16`, half the bytes, checked "
        "for what they lose; by default as they are in memory.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, Parameter(name="--quiet", negative="", help="Say nothing while working.")]
Resume = Annotated[
    bool,
    Parameter(name="--resume", negative="", help="Go on with an unfinished run, or start it if there is none."),
]
Overwrite = Annotated[bool, Parameter(name="--overwrite", negative="", help="Replace a result that is there.")]
DryRun = Annotated[
    bool,
    Parameter(
        name="--dry-run",
        negative="",
        help="Check everything, time a few steps, say what the run would do and cost, and write nothing.",
    ),
]
PushToHub = Annotated[
    str | None,
    Parameter(
        name="--push-to-hub",
        help="Push the result to the Hugging Face Hub under this name, `owner/name`, when it is done.",
    ),
]
ConfigFile = Annotated[str | None, Parameter(name="--config", help="YAML file with settings; flags given besides win.")]
