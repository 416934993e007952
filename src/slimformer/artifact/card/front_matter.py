"""What the Hub reads of a model card: its front matter, made from the manifest alone; and the licence in a base's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from slimformer.artifact.layout import CARD, CONFIG
from slimformer.errors import visible
from slimformer.files import JsonError, open_file, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slimformer.artifact.manifest import Manifest
    from slimformer.artifact.storage.handler import Storage

#: Methods whose result has weights of its own and only learned from what it is recorded to start from.
LEARNED_FROM = frozenset({"distill"})
#: Bytes of a card in which its front matter ends.
_START = 64 * 1024
_FRONT = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_LARGEST_CONFIG = 2**26


def write_front_matter(manifest: Manifest, storage: Storage, title: str) -> str:
    """The front matter of a card, in YAML between its lines."""
    content = yaml.safe_dump(
        _shown(metadata_of(manifest, storage, title)), sort_keys=False, allow_unicode=True, width=10_000
    )
    return f"---\n{content}---"


def metadata_of(manifest: Manifest, storage: Storage, title: str) -> dict[str, Any]:
    """What the Hub shows, filters by and links to: see https://huggingface.co/docs/hub/model-cards.

    Args:
        manifest: The artifact.
        storage: How it is stored.
        title: What the model is called where its results are listed.
    """
    from slimformer.tasks.kinds import pipeline_tag

    tag = pipeline_tag(manifest.model.architecture, None if manifest.task is None else manifest.task.kind)
    metadata: dict[str, Any] = {"library_name": storage.library}
    bases = [step.base for step in manifest.steps if step.base is not None]
    licence = next((base.license for base in bases if base.license is not None), None)
    if licence is not None:
        metadata["license"] = licence
    # Only an owner/name is a name the Hub can follow.
    if bases and bases[0].name.count("/") == 1:
        metadata["base_model"] = bases[0].name
        if not LEARNED_FROM & {step.method for step in manifest.steps}:
            metadata["base_model_relation"] = storage.relation
    if tag is not None:
        metadata["pipeline_tag"] = tag
    metadata["tags"] = list(dict.fromkeys(["slimformer", *(step.method for step in manifest.steps)]))
    results = [] if manifest.task is None else _results(manifest.metrics, tag or manifest.task.kind)
    if results:
        metadata["model-index"] = [{"name": title, "results": results}]
    return metadata


def licence_of(folder: Path) -> str | None:
    """The licence that the card or the config of a checkpoint names; None where neither does."""
    licence = _front_matter_of(folder / CARD).get("license") or _config_of(folder / CONFIG).get("license")
    return licence if isinstance(licence, str) and _LICENCE.fullmatch(licence) else None


def _results(metrics: Mapping[str, Mapping[str, float]], task: str) -> list[dict[str, Any]]:
    """Metrics as measured, by data set and split."""
    results = []
    for data, values in sorted(metrics.items()):
        name, _, split = data.partition("/")
        dataset = {"type": name, "name": name, **({"split": split} if split else {})}
        measured = [
            # `accuracy@S` and `mean accuracy` of nested sizes are accuracies too.
            {"type": metric.partition("@")[0].removeprefix("mean "), "value": value, "name": metric}
            for metric, value in sorted(values.items())
        ]
        results.append({"task": {"type": task}, "dataset": dataset, "metrics": measured})
    return [result for result in results if result["metrics"]]


def _shown(value: Any) -> Any:
    """The same without what steers a terminal or turns the direction of text."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, list) else value


def _front_matter_of(card: Path) -> dict[str, Any]:
    try:
        with open_file(card) as file:
            match = _FRONT.match(file.read(_START).decode("utf-8", "replace"))
        content = None if match is None else yaml.safe_load(match[1])
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _config_of(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path, _LARGEST_CONFIG)
    except (OSError, JsonError):
        return {}
    return content if isinstance(content, dict) else {}
