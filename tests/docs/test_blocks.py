"""Every Python and console block of README and the docs runs as it stands there."""

from __future__ import annotations

import pytest

from slimformer.anatomy import family
from slimformer.registry import COMMANDS, FORMATS, KINDS, METHODS, STORAGE, TERMS
from tests.docs import pages, running

ALL_PAGES = {pages.title(page): page for page in pages.pages()}
WITH_CODE = [
    name for name, page in ALL_PAGES.items() if any(each.language in running.RUN for each in pages.blocks(page))
]
#: Blocks that may be left out, in all of the docs.
LEFT_OUT = 3


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(family, "_families", dict(family._families))  # a page adds one, others to the registries
    for each in (METHODS, COMMANDS, TERMS, FORMATS, STORAGE, KINDS):
        monkeypatch.setattr(each, "_added", dict(each._added))
    return running.Reader(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE)
def test_a_page_runs(page, reader):
    reader.work_through(ALL_PAGES[page])


def test_few_blocks_are_left_out():
    reasons = {block.name: block.reason for page in ALL_PAGES.values() for block in pages.blocks(page) if block.reason}
    assert len(reasons) <= LEFT_OUT, reasons


def test_no_block_is_overlooked():
    """Fences that are indented or written otherwise would be."""
    for page in ALL_PAGES.values():
        fences = page.read_text(encoding="utf-8").count("```python") + page.read_text(encoding="utf-8").count(
            "```console"
        )
        assert fences == sum(block.language in ("python", "console") for block in pages.blocks(page)), page


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("--max-steps 5000 --out small", "--max-steps 2 --out small"),
        ('{"max_steps": 5000, "max_length": 128}', '{"max_steps": 2, "max_length": 32}'),
        ("Options(max_steps=300, batch_size=64)", "Options(max_steps=2, batch_size=4)"),
        ("--epochs 3 --max-steps 1", "--epochs 3 --max-steps 1"),
    ],
)
def test_long_runs_become_short(text, short):
    assert running.shorten(text) == short


def test_commands_and_what_they_write():
    assert running.commands("$ a \\\n  b\n c\n$ d # e\n") == [("a    b", [" c"]), ("d # e", [])]
    assert running.commands("a\nb\n") == [("a", []), ("b", [])]


def test_output_that_differs_is_seen():
    block = pages.Block("page", 1, "console", "")
    running.compare(["│ a │ 1 │", "┃ … ┃", "b"], "x\na 1\ny\nb\n", block)
    for shown in (["a 2"], ["b", "a 1"]):
        with pytest.raises(AssertionError, match="is not in"):
            running.compare(shown, "a 1\nb\n", block)


@pytest.mark.parametrize(
    ("language", "code", "complaint"),
    [
        ("console", "$ rm -rf out\n", "`rm` is neither run nor known"),
        ("console", "$ slimformer verify nowhere\n", "page:7: slimformer verify nowhere"),
        ("console", "$ slimformer --version\nnine\n", "`nine` is not in"),
        ("python", "print(1)  # prints 2\n", "`2` is not in"),
        ("yaml", "model: minilm\n", "has to name the file"),
    ],
)
def test_a_block_that_does_not_hold_is_seen(reader, language, code, complaint):
    with pytest.raises(AssertionError, match=complaint):
        reader.run(pages.Block("page", 7, language, code))


def test_a_reason_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# a\n\n<!-- not run: needs a GPU -->\n\n```console\n$ x\n```\n\n```python\ny\n```\n")
    assert [(each.line, each.language, each.reason) for each in pages.blocks(page)] == [
        (6, "console", "needs a GPU"),
        (10, "python", None),
    ]
