"""From paths and names to the sources of a corpus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.corpus.delimited import open_csv, open_tsv
from slimformer.corpus.lines import Documents, holds_json, open_json_lines, open_text
from slimformer.corpus.source import Source, SourceFile, size_of
from slimformer.corpus.tables import is_stored, open_hub, open_parquet, open_stored
from slimformer.errors import DataError
from slimformer.tasks.readers.hub import parse_hub_name

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How the names of text files end.
TEXT_ENDINGS = (".txt", ".text", ".raw", ".tokens")
#: How the names of files that can be read end.
ENDINGS = (*TEXT_ENDINGS, ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
#: Packed files cannot be read from the middle: ending → the command that unpacks.
PACKED = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}


def find_sources(path: str | Path, text_column: str | None, documents: Documents, step: int) -> Iterator[Source]:
    """The sources a path, or the name of a Hub data set, stands for."""
    place = Path(path).expanduser()
    if place.is_dir():
        if is_stored(place):
            yield open_stored(place, text_column, step)
        else:
            for file in _files_below(place):
                yield from _open(SourceFile(file, file.relative_to(place).as_posix()), text_column, documents, step)
    elif place.exists():
        yield from _open(SourceFile(place, place.name), text_column, documents, step)
    else:
        name = None if isinstance(path, Path) or place.suffix.lower() in ENDINGS else parse_hub_name(path)
        if name is None:
            raise DataError(f"nothing at `{path}`; give a file, a folder or a Hub name such as `owner/name:config`")
        yield open_hub(name, text_column, step)


def visible_files(folder: Path) -> list[Path]:
    """Every file below a folder, in order, without those that are hidden."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _files_below(folder: Path) -> list[Path]:
    there = visible_files(folder)
    # A packed file is refused rather than passed over: it is likely the very text that was meant.
    readable = [file for file in there if file.suffix.lower() in ENDINGS or _is_packed_text(file)]
    if not readable:
        kinds = ", ".join(f"`{kind}`" for kind in sorted({file.suffix.lower() or file.name for file in there})[:12])
        raise DataError(
            f"`{folder}` holds no file that can be read; found: {kinds or 'nothing'}; "
            f"give files that end in one of: {', '.join(ENDINGS)}"
        )
    return readable


def _open(file: SourceFile, text_column: str | None, documents: Documents, step: int) -> Iterator[Source]:
    """The source of a file; none for an empty one."""
    path, kind = file.path, file.path.suffix.lower()
    if kind in PACKED:
        raise DataError(
            f"`{path}` is packed and cannot be read from the middle; unpack it first: {PACKED[kind]} {path.name}"
        )
    if kind not in ENDINGS:
        raise DataError(
            f"`{path}` ends in `{kind}`, which no reader knows; give a file that ends in one of: {', '.join(ENDINGS)}"
        )
    if not size_of(path):
        return
    if kind == ".parquet":
        yield open_parquet(file, text_column, step)
    elif kind == ".csv":
        yield open_csv(file, text_column, step)
    elif kind == ".tsv":
        yield open_tsv(file, text_column, step)
    elif kind not in TEXT_ENDINGS or holds_json(path):
        yield open_json_lines(file, text_column, step)
    else:
        yield open_text(file, documents, step)


def _is_packed_text(file: Path) -> bool:
    return file.suffix.lower() in PACKED and file.with_suffix("").suffix.lower() in ENDINGS
