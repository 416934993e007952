"""Tagged sentences: CoNLL columns and CoNLL-U."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.tasks.readers.table import Row, Table, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The ten columns of CoNLL-U, by their usual names.
CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

#: What a header calls the columns of words and of tags.
WORDS = frozenset({"token", "tokens", "word", "words", "form", "text", "sentence"})
TAGS = frozenset({"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tags", "upos", "entity"})

#: A sentence: the line it begins at, and its lines with their numbers.
Sentence = list[tuple[int, str]]


def read_conll(path: Path, *, token: int = 0, tag: int = -1) -> Table:
    """Read a word a line, sentences parted by blank lines; `-DOCSTART-` lines are skipped.

    Args:
        path: The file.
        token: Index of the word's column.
        tag: Index of the tag's column.
    """
    rows = []
    width: int | None = None
    for sentence in _sentences(path):
        tokens, tags = [], []
        for number, line in sentence:
            fields = line.split("\t") if "\t" in line else line.split()
            if fields[0].startswith("-DOCSTART-"):
                continue
            first, width = width is None, width or len(fields)
            _check_fields(path, number, fields, width, tag)
            if first:
                _refuse_header(path, number, fields[token], fields[tag])
            tokens.append(fields[token])
            tags.append(fields[tag].strip())
        if tokens:
            rows.append(Row({"tokens": tokens, "tags": tags}, str(path), sentence[0][0]))
    return Table(str(path), ("tokens", "tags"), rows)


def read_conllu(path: Path, *, column: str = "upos") -> Table:
    """Read CoNLL-U; ranges of a multiword token (`1-2`) and empty nodes (`8.1`) are skipped."""
    tag = CONLLU_COLUMNS.index(column)
    rows = []
    for sentence in _sentences(path):
        tokens, tags = [], []
        for number, line in sentence:
            if line.startswith("#"):
                continue
            fields = line.split("\t")
            if len(fields) != len(CONLLU_COLUMNS):
                raise DataError(
                    f"`{path}` line {number} has {len(fields)} columns where CoNLL-U has {len(CONLLU_COLUMNS)}; "
                    "separate them with tabs"
                )
            if "-" in fields[0] or "." in fields[0]:
                continue
            tokens.append(fields[1])
            tags.append(fields[tag])
        if tokens:
            rows.append(Row({"tokens": tokens, "tags": tags}, str(path), sentence[0][0]))
    return Table(str(path), ("tokens", "tags"), rows)


def _sentences(path: Path) -> Iterator[Sentence]:
    sentence: Sentence = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            sentence.append((number, line))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _refuse_header(path: Path, number: int, word: str, tag: str) -> None:
    """Refuse a first line that names columns: it would be learned as a word and its tag."""
    if word.strip().lower() in WORDS and tag.strip().lower() in TAGS:
        raise DataError(
            f"`{path}` line {number} reads `{word}` and `{tag}`, which are names of columns, and this layout has none; "
            "remove the line"
        )


def _check_fields(path: Path, number: int, fields: list[str], width: int, tag: int) -> None:
    if len(fields) != width or width < 2:
        raise DataError(
            f"`{path}` line {number} has {len(fields)} columns where {max(width, 2)} are expected; "
            "write a word and its tag a line, and a blank line after each sentence"
        )
    if not -width <= tag < width:
        raise DataError(
            f"`{path}` line {number} has {width} columns, and label_column is `{tag}`; give a number from 0 to "
            f"{width - 1}"
        )
    if not fields[tag].strip():
        raise DataError(f"`{path}` line {number}: word `{fields[0]}` has an empty tag; write its tag, or O")
