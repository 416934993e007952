"""The index of papers names what exists, and every paper that the code cites."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.conftest import ROOT
from tests.docs.pages import DOCS

PAGE = (DOCS / "papers.md").read_text(encoding="utf-8")
MODULES = sorted(set(re.findall(r"`(slimformer(?:\.\w+)+)`", PAGE)))


def cited() -> set[str]:
    """The numbers of the papers that the code cites."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    return set(re.findall(r"arxiv[: ]+(\d{4}\.\d{4,5})", code, flags=re.IGNORECASE))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_it_names_exists(module):
    assert importlib.util.find_spec(module) is not None


def test_it_names_modules():
    assert len(MODULES) > 20


def test_every_paper_the_code_cites_is_listed():
    assert cited()
    assert sorted(number for number in cited() if f"arxiv.org/abs/{number}" not in PAGE) == []


def test_links_bear_the_number_they_show():
    links = re.findall(r"\[arXiv ([\d.]+)\]\(https://arxiv.org/abs/([\d.]+)\)", PAGE)
    assert len(links) > 15
    assert [shown for shown, target in links if shown != target] == []


def test_results_it_links_exist():
    names = re.findall(r"\]\(\.\./benchmarks/results/(\w+\.json)\)", PAGE)
    assert len(names) >= 6
    assert [name for name in names if not (ROOT / "benchmarks" / "results" / name).is_file()] == []
