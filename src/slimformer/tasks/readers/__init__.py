"""Readers: a file in, rows that know their file and line out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.files import TABLES
from slimformer.tasks.readers.table import Row, Table
from slimformer.tasks.splits import SYNONYMS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slimformer.tasks.preset import ReaderName

__all__ = ["ENDINGS", "Row", "Table", "read", "reader_for"]

_BY_SUFFIX: dict[str, ReaderName] = {
    **TABLES,
    ".conll": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".bio": "conll",
    ".conllu": "conllu",
    ".zip": "images",
}

#: How the names of files that can be read end.
ENDINGS = (*sorted(_BY_SUFFIX), ".txt")


def read(path: Path, reader: ReaderName, split: str, **options: Any) -> Table:
    """Read one file or folder with the reader of that name."""
    match reader:
        case "csv" | "tsv":
            from slimformer.tasks.readers.delimited import read_delimited

            delimiter = "," if reader == "csv" else "\t"
            return read_delimited(path, **{"delimiter": delimiter, "quoted": reader == "csv", **options})
        case "jsonl":
            from slimformer.tasks.readers.jsonl import read_jsonl

            return read_jsonl(path, **options)
        case "parquet":
            from slimformer.tasks.readers.parquet import read_parquet

            return read_parquet(path, **options)
        case "text" | "text-and-labels" | "trec" | "class-folders":
            return _read_text(path, reader, **options)
        case "conll" | "conllu" | "squad":
            return _read_annotated(path, reader, **options)
        case "images" | "idx":
            return _read_images(path, reader, split, **options)


def reader_for(path: Path, preferred: Mapping[str, ReaderName]) -> ReaderName:
    """The reader for somebody's own file, by its name, its first character and what the kind of task prefers."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    suffix = suffix.lower()
    if suffix in (".txt", ".text", ""):
        if preferred.get(".txt", "tsv") == "tsv" and is_parallel(path):
            return "text-and-labels"
        return "jsonl" if _first_character(path) == "{" else preferred.get(".txt", "tsv")
    if suffix == ".json" and suffix in preferred and _first_character(path) == "[":
        return "jsonl"
    if suffix in preferred:
        return preferred[suffix]
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    raise DataError(
        f"`{path}` ends in `{suffix}`, which no reader knows; give a file that ends in one of: {readable()}"
    )


def is_parallel(path: Path) -> bool:
    """Whether a file holds texts whose labels lie in a file beside it."""
    from slimformer.tasks.readers.text import labels_beside

    labels = labels_beside(path)
    return labels is not None and labels.is_file()


def readable() -> str:
    """The endings of files that can be read, for messages."""
    return ", ".join(ENDINGS)


def _first_character(path: Path) -> str:
    from slimformer.tasks.readers.table import read_lines

    return next((line.lstrip()[:1] for line in read_lines(path) if line.strip()), "")


def _read_text(path: Path, reader: str, **options: Any) -> Table:
    from slimformer.tasks.readers import text

    if reader == "text-and-labels":
        return text.read_parallel(path, text.labels_beside(path) or path)
    if reader == "trec":
        return text.read_label_first(path, **options)
    if reader == "class-folders":
        return text.read_class_folders(path, **options)
    return text.read_text_lines(path, **options)


def _read_annotated(path: Path, reader: str, **options: Any) -> Table:
    from slimformer.tasks.readers import conll, squad

    if reader == "squad":
        return squad.read_squad(path)
    return conll.read_conllu(path, **options) if reader == "conllu" else conll.read_conll(path, **options)


def _read_images(path: Path, reader: str, split: str, **options: Any) -> Table:
    from slimformer.tasks.readers import idx, images

    if reader == "idx":
        labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
        return idx.read_idx(path, labels)
    if path.suffix != ".zip":
        return images.read_image_folder(path.parent, path.name)
    folders = images.split_folders(path)
    found = [folder for folder in folders if folder.rsplit("/", 1)[-1].lower() in SYNONYMS[split]]
    if len(found) != 1:
        raise DataError(
            f"`{path}` has no folder for the split `{split}`; looked for: {', '.join(SYNONYMS[split])}; "
            f"found: {', '.join(folders) or 'no folders of images'}"
        )
    return images.read_image_folder(path, found[0])
