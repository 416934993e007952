"""Finding the files of a split in a folder, and how a file that lies alone is divided."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.tasks.readers import ENDINGS, read, readable
from slimformer.tasks.readers.text import labels_beside
from slimformer.tasks.splits import SYNONYMS, split_in_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slimformer.tasks.preset import Layout, Preset
    from slimformer.tasks.readers import Table

#: How a data set written in several pieces names them.
_SHARD = re.compile(r"-\d+-of-\d+")
_NAMES_SHOWN = 12
#: What is held out of somebody's own single file when `dev` is asked for.
HELD_OUT = {"train": 0.9, "dev": 0.1}


@dataclass(frozen=True)
class Folder:
    """A folder of data, or a single file seen as a folder that holds nothing else."""

    path: Path

    def files(self, layout: Layout, split: str, language: str | None = None) -> list[Path]:
        """The files of a split in one layout; none unless every language asked for has its own."""
        found: list[Path] = []
        for each in (language or layout.default_language).split(","):
            patterns = (pattern.format(language=each.strip()) for pattern in layout.files.get(split, ()))
            matching = next(filter(None, map(self._glob, patterns)), [])
            if not matching:
                return []
            found += [path for path in matching if path not in found]
        return found

    def matches(self, layout: Layout, split: str) -> bool:
        """Whether the folder holds a split, in whatever language."""
        return any(self._glob(pattern.format(language="*")) for pattern in layout.files.get(split, ()))

    def shares(self, layout: Layout, language: str | None) -> dict[str, float]:
        """The splits that one file has to feed, and their parts; empty when every split has its own."""
        carve = layout.carve
        if carve is None:
            return {}
        fed = {
            split: share
            for split, share in carve.shares.items()
            if split == carve.pool or not self.files(layout, split, language)
        }
        return fed if len(fed) > 1 else {}

    def missing(self, preset: Preset, split: str, language: str | None) -> str:
        """What to say when a preset's split is not there."""
        patterns = [
            pattern.format(language=language or layout.default_language)
            for layout in preset.layouts
            for name in (split, layout.carve.pool if layout.carve and split in layout.carve.shares else split)
            for pattern in layout.files.get(name, ())
        ]
        patterns = list(dict.fromkeys(patterns))
        looked = f"looked for: {', '.join(patterns)}" if patterns else f"`{preset.name}` has no labelled {split} files"
        return f"`{self.path}` has no {split} split of `{preset.name}`; {looked}; found: {self._listing()}"

    def own_files(self, split: str) -> list[Path]:
        """The files of a split by their names: `train.csv`, `my-valid.tsv`, `test-00000-of-00002.parquet`.

        Labels that lie beside their texts, as `train_labels.txt` beside `train_text.txt`, come with these.
        """
        files = self._data_files()
        labels = {labels_beside(path) for path in files}
        named = [path for path in files if split_in_name(path.name.split(".")[0]) == split and path not in labels]
        exact = [path for path in named if _SHARD.sub("", path.name.split(".")[0]).lower() in SYNONYMS[split]]
        found = exact or named
        if not found:
            self._refuse_other(split)
            names = ", ".join(SYNONYMS[split])
            raise DataError(
                f"`{self.path}` has no {split} split; looked for files named {names} that end in one of "
                f"{readable()}; found: {self._listing()}; add such a file"
            )
        if len({_SHARD.sub("", path.name) for path in found}) > 1:
            listed = ", ".join(path.name for path in found)
            raise DataError(
                f"`{self.path}` has several files for the {split} split: {listed}; keep one, or give the file"
            )
        return found

    def _refuse_other(self, split: str) -> None:
        """Say of a link to nothing, a folder or a pipe what it is: it is listed as a file is, and is none."""
        for path in self._glob("*"):
            if split_in_name(path.name.split(".")[0]) != split:
                continue
            if path.is_symlink() and not path.exists():
                raise DataError(f"`{path}` is a link to `{path.readlink()}`, where nothing is; mend or remove the link")
            if not path.is_file() and path.name.removesuffix(".gz").lower().endswith(ENDINGS):
                kind = "folder" if path.is_dir() else "pipe or a device"
                raise DataError(f"`{path}` is a {kind}, and data are read from files; give a file, or another folder")

    def own_images(self, split: str) -> list[Table]:
        """The images of a split: `<split>/<class>/<name>` in the folder, or in a zip file."""
        if self.path.is_file():
            return [read(self.path, "images", split)]
        folders = [
            path for path in sorted(self.path.iterdir()) if path.is_dir() and path.name.lower() in SYNONYMS[split]
        ]
        if len(folders) == 1:
            return [read(folders[0], "images", split)]
        zips = self._glob("*.zip")
        if len(several := folders or zips) > 1:
            names = ", ".join(path.name for path in several)
            raise DataError(f"`{self.path}` has several places of {split} images: {names}; keep one of them")
        if len(zips) == 1:
            return [read(zips[0], "images", split)]
        idx = self._glob(f"{'t10k' if split == 'test' else split}-images*idx3*")
        if idx:
            return [read(idx[0], "idx", split)]
        names = ", ".join(f"{name}/<class>/" for name in SYNONYMS[split])
        raise DataError(
            f"`{self.path}` has no {split} split of images; looked for: {names}, one zip file, or MNIST's idx files; "
            f"found: {self._listing()}"
        )

    def _data_files(self) -> list[Path]:
        return [
            path
            for path in self._glob("*")
            if path.is_file() and path.name.removesuffix(".gz").lower().endswith(ENDINGS)
        ]

    def _glob(self, pattern: str) -> list[Path]:
        if self.path.is_file():
            return [self.path] if self.path.match(pattern) else []
        return sorted(self.path.glob(pattern))

    def _listing(self) -> str:
        if self.path.is_file():
            return self.path.name
        names = sorted(path.name for path in self.path.iterdir())
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return (", ".join(names[:_NAMES_SHOWN]) or "nothing") + more


def usual_shares(path: Path, splits: Sequence[str]) -> Mapping[str, float] | None:
    """How a single file is divided unless told: not at all, or with a tenth held out where dev is asked for."""
    named = split_in_name(path.name.split(".")[0])
    if named is not None and set(splits) != {named}:
        other = next(split for split in splits if split != named)
        raise DataError(
            f"`{path}` is a {named} split by its name, but `{other}` was asked for; "
            "give the folder that holds both, or a file named otherwise to have a tenth of it held out"
            + (", or `--shares` to divide it" if named == "train" else "")
        )
    divided = named is None and "dev" in splits
    if (not divided and len(splits) > 1) or (divided and "test" in splits):
        raise DataError(
            f"`{path}` is one file, but {' and '.join(splits)} were asked for; give a folder with a file for each "
            "split, or `--shares` to divide it"
        )
    return HELD_OUT if divided else None


def holds_tables(path: Path) -> bool:
    """Whether a file, or some file of a folder, may be CSV or TSV."""
    files = path.glob("*") if path.is_dir() else [path]
    return any(file.name.removesuffix(".gz").lower().endswith((".csv", ".tsv", ".txt")) for file in files)


def why_whole(path: Path | None) -> str | None:
    """Why data are no single file that shares can divide, as the rest of a sentence; None where they are."""
    if path is None:
        return "a data set of the Hub, which has its splits"
    if not path.is_file() or path.suffix == ".zip":
        return "a folder, whose files are its splits"
    named = split_in_name(path.name.split(".")[0])
    return None if named in (None, "train") else f"a {named} split by its name"
