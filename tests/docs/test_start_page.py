"""The start page shows what was measured."""

from __future__ import annotations

import importlib
import json
import re

import pytest

from tests.docs.pages import DOCS


@pytest.fixture
def start(monkeypatch):
    """The script that writes the table and the picture."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("start")


def test_the_table_is_the_one_measured(start):
    page = start.PAGE.read_text(encoding="utf-8")
    shown = page.partition(start.BEGIN)[2].partition(start.END)[0].strip()
    assert shown == start.table(), "run: python docs/start.py"


def test_the_picture_is_the_one_measured(start):
    svg = start.PICTURE.read_text(encoding="utf-8")
    description = re.search(r"<dc:description>(.*?)</dc:description>", svg)
    assert description is not None
    shown = json.loads(description[1].replace("&quot;", '"'))
    assert shown == start.points(), "run: python docs/start.py"


def test_the_picture_can_be_drawn(start):
    assert start.picture().startswith("<svg")


def test_sizes_in_the_text_are_those_measured(start):
    page = start.PAGE.read_text(encoding="utf-8")
    sizes = [start.measured("method_cost", "bytes", name) for name in ("finetune", "quantize")]
    assert "a classifier of {:.0f} MB and one of {:.0f} MB".format(*(size / 1e6 for size in sizes)) in page
