"""From a folder, a file or a Hub name to the rows of the splits asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.files import as_path
from slimformer.tasks.folder import Folder, usual_shares, why_whole
from slimformer.tasks.readers import ENDINGS, Row, Table, read, reader_for
from slimformer.tasks.readers.hub import fetch, hub_splits, parse_hub_name, read_dataset
from slimformer.tasks.splits import SYNONYMS, carved_rows, check_splits, without_texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.preset import Carve, Layout, Preset


@dataclass
class SplitRows:
    """The rows of one split, how their columns are to be read, and what was done to get them.

    Args:
        rows: The rows.
        columns: The columns they share.
        file: What to call their source in messages.
        layout: Where the columns stand; None when they have to be guessed.
        carved: Whether the split was cut from a file that also feeds another.
        header: Whether the columns are named by the first line of a table, which could be data taken for names.
        label_names: Label as the rows spell it → its name, where a file beside them tells.
        notes: What a user should know, in words.
    """

    rows: Sequence[Row]
    columns: tuple[str, ...]
    file: str
    layout: Layout | None = None
    carved: bool = False
    header: bool = False
    label_names: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_splits(
    preset: Preset,
    kind: Kind,
    source: str | Path | None,
    splits: Sequence[str],
    *,
    language: str | None = None,
    options: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
    shares: Mapping[str, float] | None = None,
    group: Callable[[SplitRows], Sequence[str]] = lambda found: found.columns,
) -> dict[str, SplitRows]:
    """Read the splits asked for, and nothing else.

    Args:
        preset: The task.
        kind: What its model has to do.
        source: A folder, a file or a Hub name; None for the preset's own place on the Hub.
        splits: Some of train, dev, test.
        language: Which language of a multilingual data set; several are joined with commas.
        options: What the reader of somebody's own annotated files is told, such as the tag column.
        table: What the reader of somebody's own CSV and TSV files is told; see
            `slimformer.tasks.readers.delimited.table_options`.
        shares: Split → its part, where a single file is divided otherwise than by its name or into tenths.
        group: Columns whose equal values stay together when a single file is divided.
    """
    wanted = check_splits(splits)
    reading = _Reading(preset, kind, wanted, language, options or {}, table or {}, shares, group)
    if language is not None and not preset.multilingual:
        raise DataError(
            f"task `{preset.name}` has no languages to choose from, but language is `{language}`; leave it out"
        )
    if table and not preset.generic:
        raise DataError(
            f"task `{preset.name}` knows how its files are written, but {_named(table)} was given; leave it out, or "
            f"give `--task {preset.kind}` for files of your own"
        )
    path = _existing(preset, source)
    if shares is not None and (reason := why_whole(path)):
        raise DataError(
            f"shares divide a single file, and `{source or preset.name}` is {reason}; give one file, or leave them out"
        )
    if path is None:
        return _read_hub(reading, source)
    return _read_own(reading, path) if preset.generic else _read_preset(reading, path)


@dataclass(frozen=True)
class _Reading:
    """What was asked of `read_splits`."""

    preset: Preset
    kind: Kind
    wanted: Sequence[str]
    language: str | None
    options: Mapping[str, Any]
    table: Mapping[str, Any]
    shares: Mapping[str, float] | None
    group: Callable[[SplitRows], Sequence[str]]

    def own_table(self, path: Path, split: str) -> Table:
        """One of somebody's own files."""
        reader = reader_for(path, self.kind.readers)
        if reader in ("csv", "tsv"):
            return read(path, reader, split, **self.table)
        if self.table:
            raise DataError(
                f"`{path}` is read as `{reader}`, and {_named(self.table)} is for CSV and TSV; leave it out"
            )
        return read(path, reader, split, **(self.options if reader in ("conll", "conllu") else {}))

    def whole(self, path: Path, layout: Layout | None) -> SplitRows:
        """A single file; of a preset's own, only the language asked for."""
        split = self.wanted[0]
        if layout is None:
            return _join([self.own_table(path, split)], None)
        if self.shares is not None or self.language is not None:
            return _read_files([path], layout, split, self.language)
        return _join([read(path, layout.reader, split, **layout.options)], layout)

    def columns_kept_together(self, whole: SplitRows) -> Sequence[str]:
        """The columns whose equal values stay together when the rows are divided."""
        carve = whole.layout.carve if whole.layout and self.shares is not None else None
        return carve.group if carve and carve.group else self.group(whole)


def _named(table: Mapping[str, Any]) -> str:
    return "`--no-header`" if "header" in table else "`--quoting`"


def _existing(preset: Preset, source: str | Path | None) -> Path | None:
    """The path a source names, or None when it has to be a Hub name."""
    if source is None:
        if preset.hub is None:
            raise DataError(f"task `{preset.name}` has no data of its own; give a folder, a file or a Hub name")
        return None
    path = as_path(source)
    if path.is_file() or path.is_dir():
        return path
    if path.is_symlink() and not path.exists():
        raise DataError(f"`{source}` is a link to `{path.readlink()}`, where nothing is; mend the link")
    if path.exists():
        raise DataError(f"`{source}` is a pipe or a device, and data are read more than once; give a file or a folder")
    if isinstance(source, Path) or parse_hub_name(source) is None or path.suffix.lower() in ENDINGS:
        raise DataError(f"nothing at `{source}`; give a folder, a file or a Hub name such as `owner/name:config`")
    return None


def _read_preset(reading: _Reading, path: Path) -> dict[str, SplitRows]:
    folder, preset = Folder(path), reading.preset
    if path.is_file():
        known = [layout for layout in preset.layouts if any(folder.matches(layout, split) for split in SYNONYMS)]
        if reading.shares is not None or not known:
            return _read_single(reading, path, (known or preset.layouts)[0])
    return {split: _read_split(preset, folder, split, reading.language) for split in reading.wanted}


def _read_split(preset: Preset, folder: Folder, split: str, language: str | None) -> SplitRows:
    for layout in preset.layouts:
        if folder.files(layout, split, language):
            return _from_layout(folder, layout, split, language)
        carve = layout.carve
        if carve and split in carve.shares and folder.files(layout, carve.pool, language):
            return _from_layout(folder, layout, split, language)
    raise DataError(folder.missing(preset, split, language))


def _from_layout(folder: Folder, layout: Layout, split: str, language: str | None) -> SplitRows:
    own = folder.files(layout, split, language)
    carve = layout.carve
    shares = folder.shares(layout, language)
    if carve is None or split not in shares:
        found = _read_files(own, layout, split, language)
    else:
        pool = _read_files(folder.files(layout, carve.pool, language), layout, carve.pool, language)
        found = _part(pool, layout, carve, shares, split)
    other = layout.distinct_from.get(split)
    if other and folder.files(layout, other, language):
        against = _read_files(folder.files(layout, other, language), layout, other, language)
        found = _distinct(found, against, layout, split, other)
    return found


def _read_files(paths: Sequence[Path], layout: Layout, split: str, language: str | None) -> SplitRows:
    tables = [read(path, layout.reader, split, **layout.options) for path in paths]
    found = _join(tables, layout)
    if layout.language_column and layout.language_column in found.columns:
        column, languages = layout.language_column, (language or layout.default_language).split(",")
        found.rows = [row for row in found.rows if row.values[column] in languages]
        if not found.rows:
            raise DataError(
                f"`{found.file}` has no rows whose `{column}` is `{','.join(languages)}`; give another language"
            )
    return found


def _part(pool: SplitRows, layout: Layout, carve: Carve, shares: dict[str, float], split: str) -> SplitRows:
    if layout.split_column and layout.split_column[0] in pool.columns:
        column, split_of = layout.split_column
        rows = [row for row in pool.rows if split_of.get(str(row.values[column])) == split]
        if not rows:
            raise DataError(
                f"`{pool.file}` has no rows of split `{split}` in its column `{column}`; ask for another split"
            )
        return SplitRows(rows, pool.columns, pool.file, layout)
    parts = carved_rows(pool.rows, shares, carve.group or layout.text, in_order=layout.reader == "text")
    others = " and ".join(other for other in shares if other != split)
    note = f"{split}: {len(parts[split])} of the {len(pool.rows)} rows of `{pool.file}`, which also feeds {others}"
    return SplitRows(parts[split], pool.columns, pool.file, layout, carved=True, notes=[note])


def _distinct(found: SplitRows, against: SplitRows, layout: Layout, split: str, other: str) -> SplitRows:
    rows = without_texts_of(found.rows, against.rows, layout.text)
    dropped = len(found.rows) - len(rows)
    if dropped:
        found.notes.append(f"{split}: {dropped} rows of `{found.file}` left out because {other} holds them too")
    found.rows = rows
    return found


def _read_own(reading: _Reading, path: Path) -> dict[str, SplitRows]:
    """Somebody's own files: a folder with a file for each split, or a single file."""
    images = reading.kind.modality == "images"
    if path.is_file() and not (images and path.suffix == ".zip"):
        return _read_single(reading, path, None)
    folder = Folder(path)
    if images:
        return {split: _join(folder.own_images(split), None) for split in reading.wanted}
    return {
        split: _join([reading.own_table(file, split) for file in folder.own_files(split)], None)
        for split in reading.wanted
    }


def _read_single(reading: _Reading, path: Path, layout: Layout | None) -> dict[str, SplitRows]:
    """One file, divided by the shares asked for.

    Without any it is the split its name speaks of; else all of it, or nine tenths and a tenth when dev is asked for.
    """
    wanted = reading.wanted
    shares = reading.shares or usual_shares(path, wanted)
    absent = [split for split in wanted if shares and split not in shares]
    if absent:
        raise DataError(
            f"`{path}` is divided into {' and '.join(shares or ())}, but {absent[0]} was asked for; give a third share "
            "for it, such as `--shares 0.8,0.1,0.1`"
        )
    whole = reading.whole(path, layout)
    if not shares:
        return {wanted[0]: whole}
    parts = carved_rows(whole.rows, shares, reading.columns_kept_together(whole), in_order=reading.kind.in_order)
    sizes = {split: len(rows) for split, rows in parts.items()}
    if reading.shares is None:
        note = f"dev: a tenth of `{path}`, {sizes['dev']} of {len(whole.rows)} rows"
    else:
        listed = ", ".join(f"{size} to {split}" for split, size in sizes.items())
        note = f"of the {len(whole.rows)} rows of `{path}`, shares give {listed}"
    return {split: replace(whole, rows=parts[split], carved=True, notes=[note, *whole.notes]) for split in wanted}


def _read_hub(reading: _Reading, source: str | Path | None) -> dict[str, SplitRows]:
    preset = reading.preset
    own = preset.hub.name.format(language=reading.language or "en") if preset.hub else ""
    name = parse_hub_name(str(source) if source is not None else own)
    assert name is not None  # `_existing` refused everything else
    if reading.table:
        raise DataError(
            f"`{name}` is a data set of the Hub, and {_named(reading.table)} is for CSV and TSV; leave it out"
        )
    datasets = fetch(name)
    return {
        split: _join([read_dataset(name, found, datasets[found])], preset.hub.layout() if preset.hub else None)
        for split, found in hub_splits(name, list(datasets), reading.wanted)
    }


def _join(tables: Sequence[Table], layout: Layout | None) -> SplitRows:
    rows = [row for table in tables for row in table.rows]
    columns = tuple(dict.fromkeys(column for table in tables for column in table.columns))
    return SplitRows(
        rows,
        columns,
        ", ".join(table.file for table in tables),
        layout,
        header=any(table.header for table in tables),
        label_names={label: name for table in tables for label, name in table.label_names.items()},
        notes=[note for table in tables for note in table.notes],
    )
