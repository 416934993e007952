"""Runs the blocks of a page as a reader would: in their order, in one folder, Python in one namespace.

Nothing of slimformer is replaced; runs are shortened by `SHORTER` alone, and data and models are those of `prepared`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from slimformer.runtime.native import is_built
from tests import runs
from tests.conftest import ROOT
from tests.docs import pages
from tests.docs.prepared import prepare

if TYPE_CHECKING:
    from pathlib import Path

#: The one place where long runs become short ones: what these settings are at most, wherever a page gives them, as
#: flags or in Python. Epochs are short already, since the data that is prepared is small.
SHORTER = {"max-steps": 2, "head-steps": 2, "batch-size": 4, "max-length": 32, "new-tokens": 2}
#: Flags that commands are given besides.
BESIDES = {"bench": ("--seconds", "0"), "export": ("--length", "16")}
#: Commands of a shell that are known and not run: they install or prepare the machine.
NOT_OURS = frozenset({"pip", "make", "source"})
RUN = ("python", "console", "yaml")
#: What a block has that asks for the kernels.
ENGINE = re.compile(r"--engine native|engine=\"native\"|--runtime|slimformer\.runtime")
BOX = re.compile(r"[\u2500-\u257f]+")


@dataclass
class Reader:
    """Somebody who works through a page."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)

    def work_through(self, page: Path) -> None:
        """Run all blocks of a page, and before them those of the page it says it comes after."""
        text = page.read_text(encoding="utf-8")
        for before in re.findall(r"<!-- after: (\S+) -->", text):
            self.work_through(ROOT / before)
        needs = ", ".join(re.findall(r"<!-- prepared: (.+?) -->", text))
        prepare(needs.split(", ") if needs else [], self.folder)
        for block in pages.blocks(page):
            if block.reason is None and block.language in RUN:
                if ENGINE.search(block.code) and not is_built():
                    pytest.skip(f"{block.name} needs the kernels")  # and what follows may need the block
                self.run(block)

    def run(self, block: pages.Block) -> None:
        """Run one block."""
        {"python": self._python, "console": self._console, "yaml": self._yaml}[block.language](block)

    def _python(self, block: pages.Block) -> None:
        """Execute a block; a comment `# prints TEXT` behind a call of `print` is compared with what it prints."""
        code = "\n" * (block.line - 1) + shorten(block.code)  # so that tracebacks name the line of the page
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, block.page, "exec"), self.names)
        compare(re.findall(r"# prints (.+)", block.code), printed.getvalue(), block)

    def _console(self, block: pages.Block) -> None:
        """Run a block's commands in this process, and compare what they write with what the page shows."""
        for command, shown in commands(block.code):
            words = shlex.split(command, comments=True)
            if words[0] in NOT_OURS:
                continue
            assert words[0] == "slimformer", f"{block.name}: `{words[0]}` is neither run nor known to be left out"
            # What a command writes for llama.cpp is not run, so that it has no length.
            besides = () if any(word.endswith(".gguf") for word in words) else BESIDES.get(words[1], ())
            done = runs.run(*shlex.split(shorten(shlex.join(words[1:]))), *besides)
            assert done.code == 0, f"{block.name}: {command}\n{done.err}"
            compare(shown, done.out, block)

    def _yaml(self, block: pages.Block) -> None:
        """Write a file that is named in the first line of its block."""
        name = re.match(r"# (\S+\.yaml)\n", block.code)
        assert name is not None, f"{block.name}: the first line has to name the file"
        (self.folder / name[1]).write_text(block.code, encoding="utf-8")


def shorten(text: str) -> str:
    """Commands or Python code with the settings of `SHORTER`."""
    for name, most in SHORTER.items():
        setting = rf"(--{name}[ =]|\b{name.replace('-', '_')}\"?(?:: |=))(\d+)"
        text = re.sub(setting, lambda match, most=most: f"{match[1]}{min(int(match[2]), most)}", text)
    return text


def commands(code: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines of output that follow it.

    With prompts, lines without one are output; without prompts all lines are commands.
    """
    lines = code.replace("\\\n", " ").splitlines()
    prompts = any(line.startswith("$ ") for line in lines)
    parsed: list[tuple[str, list[str]]] = []
    for line in filter(str.strip, lines):
        if line.startswith("$ ") or not prompts:
            parsed.append((line.removeprefix("$ "), []))
        else:
            parsed[-1][1].append(line)
    return parsed


def compare(shown: list[str], written: str, block: pages.Block) -> None:
    """Check that the lines shown were written, in that order; frames, line ends and lines with `…` do not count."""
    rest = _plain(written)
    for line in filter(None, (_plain(line) for line in shown if "…" not in line)):
        _, met, rest = rest.partition(line)
        assert met, f"{block.name}: `{line}` is not in:\n{written}"


def _plain(text: str) -> str:
    return " ".join(BOX.sub(" ", text).split())
