"""Finding the files of a split in a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.tasks.readers import ENDINGS, read, readable
from slimformer.tasks.splits import SYNONYMS, split_in_name

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.tasks.preset import Layout, Preset
    from slimformer.tasks.readers import Table

#: How a data set written in several pieces names them.
_SHARD = re.compile(r"-\d+-of-\d+")
_NAMES_SHOWN = 12


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
        """The files of a split by their names: `train.csv`, `my-valid.tsv`, `test-00000-of-00002.parquet`."""
        named = [path for path in self._data_files() if split_in_name(path.name.split(".")[0]) == split]
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
