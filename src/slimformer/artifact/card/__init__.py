"""The model card: `README.md`, made from the manifest alone, so that it can be made again."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from slimformer.artifact.card.front_matter import write_front_matter
from slimformer.artifact.layout import WEIGHT_SUFFIXES
from slimformer.artifact.storage.handler import as_cell, as_code
from slimformer.registry import STORAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slimformer.artifact.manifest import Manifest, Step, TaskRecord
    from slimformer.artifact.storage.handler import Storage


def write_card(manifest: Manifest) -> str:
    """Write the card of an artifact; `files` of the manifest may lack the card itself."""
    storage: Storage = STORAGE.get(manifest.model.storage)()
    parts = [
        write_front_matter(manifest, storage, _title(manifest).replace("`", "")),
        f"# {_title(manifest)}",
        _introduction(manifest),
        "## Load\n\n" + storage.card(manifest),
        "## How it was made\n\n" + _steps(manifest.steps),
        f"## Settings of {as_cell(manifest.steps[-1].method)}\n\n" + _settings(manifest.steps[-1]),
    ]
    if manifest.task is not None:
        parts.append("## Task\n\n" + _task(manifest.task))
    if manifest.metrics:
        parts.append("## Metrics\n\n" + _metrics(manifest.metrics))
    parts.append("## Size\n\n" + _size(manifest, storage.card_sizes(manifest)))
    parts.append("## Versions\n\n" + _table(("Library", "Version"), sorted(manifest.steps[-1].versions.items())))
    parts.append("`slimformer verify path/to/this/folder` checks that the folder is as it was saved.")
    return "\n\n".join(parts) + "\n"


def _title(manifest: Manifest) -> str:
    origin = manifest.steps[0].base
    names = ["" if origin is None else origin.name, *(step.method for step in manifest.steps)]
    made_for = "" if manifest.task is None else f" for {as_cell(manifest.task.name)}"
    return " → ".join(as_cell(name) for name in names if name) + made_for


def _introduction(manifest: Manifest) -> str:
    methods = ", then ".join(as_code(step.method) for step in manifest.steps)
    origin = manifest.steps[0].base
    start = "" if origin is None else f", starting from {as_code(origin.name)}"
    return f"A `{manifest.model.architecture}` made with slimformer by {methods}{start}."


def _steps(steps: Sequence[Step]) -> str:
    rows = [
        (
            str(number),
            step.method,
            "" if step.base is None else step.base.name,
            "" if step.seed is None else str(step.seed),
            "below" if number == len(steps) else json.dumps(step.config, sort_keys=True, ensure_ascii=False),
        )
        for number, step in enumerate(steps, start=1)
    ]
    return _table(("Step", "Method", "Base", "Seed", "Config"), rows)


def _settings(step: Step) -> str:
    """The settings of a step that say something, and which of them nobody gave."""
    rows = [
        (name, value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False))
        for name, value in sorted(step.config.items())
        if value is not None
    ]
    if not rows:
        return "None."
    table = _table(("Setting", "Value"), rows)
    if not step.left_open:
        return table
    return f"{table}\n\nLeft open, and decided by task, model or machine: {', '.join(map(as_code, step.left_open))}."


def _task(task: TaskRecord) -> str:
    rows = [("Name", task.name), ("Kind", task.kind)]
    if task.labels is not None:
        rows.append(("Labels", ", ".join(task.labels)))
    return _table(("", ""), rows)


def _metrics(metrics: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        (data, name, f"{value:.4f}" if abs(value) < 1e4 else f"{value:.6g}")
        for data, values in sorted(metrics.items())
        for name, value in sorted(values.items())
    ]
    return _table(("Data", "Metric", "Value"), rows)


def _size(manifest: Manifest, more: list[tuple[str, str]]) -> str:
    model = manifest.model
    stored = sum(sums.bytes for name, sums in manifest.files.items() if PurePosixPath(name).suffix in WEIGHT_SUFFIXES)
    rows = [("Parameters", f"{model.parameters:,}"), ("Type", model.dtype), *more, ("Weights", f"{stored:,} bytes")]
    if model.rounded is not None:
        rows += [("Stored as", model.rounded.dtype), ("Answers moved by", f"{100 * model.rounded.moved:.2g} %")]
    return _table(("", ""), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([as_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
