from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from slimformer.errors import ConfigError
from slimformer.report import Facts, Figure, Page, Series, Table, curves, scatter, write_page


class Balanced(HTMLParser):
    """Checks that every tag is closed, and collects what the page would fetch."""

    EMPTY = frozenset({"meta", "path", "use", "br", "rect", "stop", "clippath"})

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in self.EMPTY:
            self.open.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href") and value]

    def handle_startendtag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name in ("src", "href") and value]

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


@pytest.fixture
def page():
    svg = curves([("loss", [Series("a", [1, 2, 3], [3, 2, 1]), Series("b", [1, 2, 3], [1, 2, 3])])], x_label="step")
    blocks = [
        Table("Sizes", ["model", "bytes"], [["<script>alert(1)</script>", "12"]], note="a & b"),
        Figure("Curves", svg, caption="going down"),
        Facts("How", {"seed": "0"}),
    ]
    return Page("A report", "What it says.", blocks)


def test_the_page_is_whole_and_fetches_nothing(page):
    parser = Balanced()
    parser.feed(page.html())
    assert parser.open == []
    assert [link for link in parser.fetched if not link.startswith("#")] == []
    assert not re.search(r"<script|@import|url\(\s*[\"']?http", page.html())


def test_text_is_escaped(page):
    assert "&lt;script&gt;" in page.html()
    assert "a &amp; b" in page.html()


def test_plots_are_the_same_every_time():
    def draw():
        return scatter([("small", 1, 0.8), ("large", 2, 0.9)], "bytes", "accuracy")

    assert draw() == draw()
    assert draw().startswith("<svg")


def test_writing_leaves_the_page_alone(page, tmp_path):
    path = write_page(page, tmp_path / "deep" / "report.html")
    assert path.read_text(encoding="utf-8").startswith(page.html())
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_only_a_page_as_it_was_written_is_replaced(page, tmp_path):
    path = tmp_path / "report.html"
    for _ in range(2):
        write_page(page, path)
    whole = path.read_bytes()
    for other in (b"", b"my own words", whole.replace(b"going down", b"going up"), whole + b"\n", whole * 2):
        path.write_bytes(other)
        with pytest.raises(ConfigError, match=r"report\.html` exists and is no report as slimformer wrote it"):
            write_page(page, path)
        assert path.read_bytes() == other


def test_names_are_no_formulas():
    """`$\\frac$` is no formula that Matplotlib knows."""
    line = Series("$\\frac$ \x1b[2J", [1, 2], [3, 4])
    assert curves([("loss", [line, line])], "step").startswith("<svg")
    assert scatter([("$\\frac$", 1.0, 2.0)], "x", "y").startswith("<svg")
