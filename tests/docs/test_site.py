"""What a reader sees in the browser: formulas as MathML, code that fits its column."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

from tests.conftest import ROOT
from tests.docs import pages

#: Columns of a block of code that fit beside the navigation at 1280 pixels.
COLUMNS = 86
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$`])\$([^$\n`]+)\$", flags=re.DOTALL)
ALL_PAGES = {pages.title(page): page for page in pages.pages()}


@pytest.fixture
def mathml(monkeypatch):
    pytest.importorskip("latex2mathml")
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(pages.DOCS / "_ext"))
    return importlib.import_module("mathml")


def formulas() -> list[str]:
    """Every formula of the site; README is shown by others."""
    latex = []
    for page in ALL_PAGES.values():
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        latex += [block or inline for block, inline in FORMULA.findall(text)]
    return latex


def test_every_formula_becomes_mathml(mathml):
    assert len(formulas()) > 20
    for latex in formulas():
        assert mathml.to_mathml(latex, "block").startswith("<math ")


@pytest.mark.parametrize("latex", [r"\hologram{x}", r"\begin{aligned} a &= b \end{aligned}"])
def test_a_formula_that_would_show_as_text_is_refused(mathml, latex):
    with pytest.raises(Exception, match="without MathML"):
        mathml.to_mathml(latex, "inline")


def docstrings() -> list[str]:
    """Every docstring of the library; the reference shows those of what is public."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for path in (ROOT / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]


@pytest.mark.slow
def test_no_docstring_has_formulas_in_dollars():
    """The reference is reStructuredText, which shows dollars and commands of TeX as they are."""
    assert len(docstrings()) > 500
    assert [text for text in docstrings() if FORMULA.search(re.sub(r"`[^`]*`", "", text))] == []


@pytest.mark.parametrize("page", ALL_PAGES)
def test_code_fits_its_column(page):
    wide = [
        f"{block.name}: {line}"
        for block in pages.blocks(ALL_PAGES[page])
        if block.language in ("python", "console", "yaml")
        for line in block.code.splitlines()
        if len(line) > COLUMNS
    ]
    assert not wide
