"""The pages of the documentation and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
#: A fenced block, with the reason beside it if it is not to be run.
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n\n?)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    reason: str | None = None

    @property
    def name(self) -> str:
        """Where the block stands."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README and every page of the site."""
    return [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]


def title(page: Path) -> str:
    """A page by its path from the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            title(page),
            text.count("\n", 0, match.start("code")) + 1,
            match["language"],
            match["code"],
            match["reason"],
        )
        for match in FENCE.finditer(text)
    ]
