"""Plain text: a line a row, texts with a parallel file of labels, TREC's label files, and class folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.tasks.columns import listed
from slimformer.tasks.readers.table import Row, Table, read_lines, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: What the file is called that names the labels of TweetEval's layout.
MAPPING = "mapping.txt"
#: Under this key a line says which running text it is part of; it is not a column.
DOCUMENT = "slimformer:document"


def read_text_lines(path: Path, *, skip_blank: bool = False) -> Table:
    """Read a text file as rows of one column, `text`; blank lines are kept unless told otherwise."""
    rows = [
        Row({"text": line, DOCUMENT: str(path)}, str(path), number)
        for number, line in enumerate(read_lines(path), start=1)
        if line.strip() or not skip_blank
    ]
    return Table(str(path), ("text",), rows)


def labels_beside(texts: Path) -> Path | None:
    """Where the labels of a file of texts are in TweetEval's layout: `train_text.txt` goes with `train_labels.txt`."""
    begin, mark, end = texts.name.rpartition("_text")
    return texts.with_name(f"{begin}_labels{end}") if mark else None


def read_parallel(texts: Path, labels: Path) -> Table:
    """Read texts and labels from two files of equally many lines; `mapping.txt` beside them names the labels."""
    text_lines, label_lines = list(read_lines(texts)), list(read_lines(labels))
    if len(text_lines) != len(label_lines):
        raise DataError(
            f"`{texts}` has {len(text_lines)} lines and `{labels}` has {len(label_lines)}; "
            "line n of one belongs to line n of the other, so mend the shorter file"
        )
    mapping = labels.with_name(MAPPING)
    names = read_mapping(mapping) if mapping.is_file() else {}
    for number, label in enumerate(label_lines, start=1) if names else ():
        if label.strip() and label.strip() not in names:
            raise DataError(
                f"`{labels}` line {number}: label `{label.strip()}` is not one of {listed(list(names))}, which "
                f"`{mapping}` names; mend the line, or add the label there"
            )
    rows = [
        Row({"text": text, "label": label.strip()}, str(texts), number)
        for number, (text, label) in enumerate(zip(text_lines, label_lines, strict=True), start=1)
    ]
    return Table(str(texts), ("text", "label"), rows, label_names=names)


def read_mapping(path: Path) -> dict[str, str]:
    """Read TweetEval's list of labels: a label as data spell it, a tab and its name a line."""
    names: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        # Of emoji a third field has the description.
        label, name, *_ = (field.strip() for field in [*line.split("\t"), "", ""])
        if not label or not name:
            raise DataError(f"`{path}` line {number} reads `{line[:40]}`; write a label, a tab and its name")
        if label in names or name in names.values():
            twice = label if label in names else name
            raise DataError(f"`{path}` line {number}: `{twice}` is there twice; name every label once")
        names[label] = name
    return names


def read_label_first(path: Path, encoding: str = "utf-8") -> Table:
    """Read TREC's layout: `COARSE:fine The question ?` a line."""
    rows = []
    for number, line in enumerate(read_lines(path, encoding), start=1):
        label, _, text = line.partition(" ")
        coarse, colon, _ = label.partition(":")
        if not colon or not text.strip():
            raise DataError(f"`{path}` line {number} does not read `LABEL:detail text`: `{line[:40]}`; mend the line")
        rows.append(Row({"text": text, "label": coarse, "fine_label": label}, str(path), number))
    return Table(str(path), ("text", "label", "fine_label"), rows)


def read_class_folders(folder: Path, *, classes: Sequence[str]) -> Table:
    """Read `<folder>/<class>/*.txt`, a text a file (the layout of aclImdb); other folders are not looked at."""
    rows = [
        Row({"text": read_text(file).strip(), "label": label}, str(file), 1)
        for label in classes
        for file in sorted((folder / label).glob("*.txt"))
    ]
    if not rows:
        there = sorted(path.name for path in folder.iterdir() if path.is_dir())
        raise DataError(
            f"`{folder}` has no texts in folders called {listed(classes)}, the labels of this task; it has "
            f"{listed(there) or 'no folders'}; for labels of your own give a file and `--task classification`"
        )
    return Table(str(folder), ("text", "label"), rows)
