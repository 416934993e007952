"""From the name of a Hub data set to its rows: the commit, the split and the column of text."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slimformer.corpus.remote.rows import WAIT, HubRows, lost
from slimformer.corpus.source import Source, text_column_of
from slimformer.corpus.tables import check_text, open_splits, training_split
from slimformer.errors import DataError
from slimformer.models.hub import quiet_unless_watched, status_of, was_offline
from slimformer.tasks.readers.hub import HubName, fetch, loading, not_loaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: How the names of files end whose text takes more room than they do, and how many times as much it takes, roughly.
_COMPRESSED, _UNPACKED = (".parquet", ".arrow", ".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip"), 3

#: How often the commit is asked for again; fewer times than rows are, for there may be a copy to read.
RETRIES = 2

#: (endpoint, name) → the commit that the name stands for as long as this process runs.
_commits: dict[tuple[str, HubName], str] = {}


def open_hub(name: HubName, text_column: str | None, step: int) -> Source:
    """A data set of the Hub; of its splits the one for training.

    Its rows are streamed. Where the Hub is not asked or cannot be reached, they come from the copy that the `datasets`
    library keeps, if there is one; no other is made.
    """
    from datasets import config

    if config.HF_HUB_OFFLINE:
        return open_splits(str(name), fetch(name), text_column, step)
    try:
        commit = _commit_of(name)
    except Exception as error:
        kept = _kept(name) if status_of(error) is None else None
        if kept is None:
            raise not_loaded(name, error) from error
        return open_splits(str(name), kept, text_column, step)
    return _open_commit(name, commit, text_column, step)


def _commit_of(name: HubName) -> str:
    """The commit a name stands for; what the Hub's library raises is raised after some more attempts."""
    from datasets import config
    from huggingface_hub import HfApi

    key, failures = (config.HF_ENDPOINT, name), 0
    while key not in _commits:
        try:
            sha = HfApi(endpoint=config.HF_ENDPOINT).dataset_info(name.name, revision=name.revision).sha
        except Exception as error:
            failures += 1
            if failures > RETRIES or was_offline(error) or not lost(error):
                raise
            time.sleep(WAIT * 2 ** (failures - 1))
        else:
            if sha is None:
                raise DataError("the Hub does not say which commit it is")
            _commits[key] = sha
    return _commits[key]


def _kept(name: HubName) -> Mapping[str, Any] | None:
    """The splits of the copy that the `datasets` library keeps; None where there is none. Nothing is downloaded."""
    from datasets import config

    # A load that may ask would fetch all of the text where the network has come back meanwhile.
    asking, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, True
    try:
        return fetch(name)
    except DataError:
        return None
    finally:
        config.HF_HUB_OFFLINE = asking


def _open_commit(name: HubName, commit: str, text_column: str | None, step: int) -> HubRows:
    from datasets import load_dataset_builder

    with loading(name), quiet_unless_watched():
        builder = load_dataset_builder(name.name, name.config, revision=commit)
        splits = _splits_of(builder)
    if splits is None:
        raise _no_rows(str(name))
    split = training_split(str(name), list(splits))
    label = f"{name} {split}"
    with loading(name):
        schema = _schema_of(splits[split])
    if schema is None:
        raise _no_rows(label)
    column = text_column_of(schema.names, label, text_column)
    check_text(label, column, schema.field(column).type)
    described = (builder.info.splits or {}).get(split)
    rows = (described.num_examples or 0) if described is not None else 0
    with loading(name):
        stored = 0 if rows else _about((builder.config.data_files or {}).get(split, ()))
    return HubRows(
        replace(name, revision=commit),
        label,
        split,
        column,
        step,
        by_column=hasattr(builder.config, "columns") and hasattr(builder.config, "batch_size"),
        rows=rows,
        stored=stored,
    )


def _splits_of(builder: Any) -> dict[str, Any] | None:
    """The splits as they are streamed; None where `datasets` looks at the first row of JSON Lines and there is none."""
    try:
        return dict(builder.as_streaming_dataset())
    except StopIteration:
        return None


def _no_rows(label: str) -> DataError:
    return DataError(f"`{label}` holds no rows; give a data set with at least one document")


def _schema_of(rows: Any) -> Any:
    """The columns of a split and their types: those declared or, where none are, those of the first row.

    None where nothing is declared and there is no row.
    """
    if rows.features is not None:
        return rows.features.arrow_schema
    first = next(iter(rows.with_format("arrow").iter(1)), None)
    return None if first is None else first.schema


def _about(files: Iterable[str]) -> int:
    """About how many bytes of text some files of the Hub hold, by their sizes."""
    from datasets import config
    from huggingface_hub import HfFileSystem

    total, system = 0, HfFileSystem(endpoint=config.HF_ENDPOINT)
    for file in files:
        size = system.info(file).get("size") or 0 if file.startswith("hf://") else 0
        total += size * (_UNPACKED if file.endswith(_COMPRESSED) else 1)
    return total
