"""From the name of a Hub data set to its rows: the commit, the split and the column of text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slimformer.corpus.remote.rows import HubRows
from slimformer.corpus.source import Source, text_column_of
from slimformer.corpus.tables import check_text, open_splits, training_split
from slimformer.models.hub import quiet_unless_watched, status_of
from slimformer.tasks.readers.hub import HubName, fetch, loading, not_loaded

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How the names of files end whose text takes more room than they do, and how many times as much it takes, roughly.
_COMPRESSED, _UNPACKED = (".parquet", ".arrow", ".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip"), 3

#: (endpoint, name) → the commit that the name stands for as long as this process runs.
_commits: dict[tuple[str, HubName], str] = {}


def open_hub(name: HubName, text_column: str | None, step: int) -> Source:
    """A data set of the Hub; of its splits the one for training.

    Its rows are streamed. Where the Hub is not asked or cannot be reached, they come from the copy that the `datasets`
    library keeps, if there is one.
    """
    commit = _commit_of(name)
    if commit is None:
        return open_splits(str(name), fetch(name), text_column, step)
    return _open_commit(name, commit, text_column, step)


def _commit_of(name: HubName) -> str | None:
    """The commit a name stands for; None where the Hub does not say it."""
    from datasets import config
    from huggingface_hub import HfApi

    if config.HF_HUB_OFFLINE:
        return None
    key = (config.HF_ENDPOINT, name)
    if key not in _commits:
        try:
            sha = HfApi(endpoint=config.HF_ENDPOINT).dataset_info(name.name, revision=name.revision).sha
        except Exception as error:
            if status_of(error) is None:  # it was not reached
                return None
            raise not_loaded(name, error) from error
        if sha is None:
            return None
        _commits[key] = sha
    return _commits[key]


def _open_commit(name: HubName, commit: str, text_column: str | None, step: int) -> HubRows:
    from datasets import load_dataset_builder

    with loading(name), quiet_unless_watched():
        builder = load_dataset_builder(name.name, name.config, revision=commit)
        splits: dict[str, Any] = builder.as_streaming_dataset()
    split = training_split(str(name), list(splits))
    label = f"{name} {split}"
    with loading(name):
        schema = _schema_of(splits[split])
    column = text_column_of(schema.names, label, text_column)
    check_text(label, column, schema.field(column).type)
    described = (builder.info.splits or {}).get(split)
    return HubRows(
        replace(name, revision=commit),
        label,
        split,
        column,
        step,
        by_column=hasattr(builder.config, "columns") and hasattr(builder.config, "batch_size"),
        rows=(described.num_examples or 0) if described is not None else 0,
        stored=_about((builder.config.data_files or {}).get(split, ())),
    )


def _schema_of(rows: Any) -> Any:
    """The columns of a split and their types: those declared or, where none are, those of the first row."""
    if rows.features is not None:
        return rows.features.arrow_schema
    return next(iter(rows.with_format("arrow").iter(1))).schema


def _about(files: Iterable[str]) -> int:
    """About how many bytes of text some files of the Hub hold, by their sizes."""
    from datasets import config
    from huggingface_hub import HfFileSystem

    total, system = 0, HfFileSystem(endpoint=config.HF_ENDPOINT)
    for file in files:
        size = system.info(file).get("size") or 0 if file.startswith("hf://") else 0
        total += size * (_UNPACKED if file.endswith(_COMPRESSED) else 1)
    return total
