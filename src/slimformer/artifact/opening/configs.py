"""The configs of an artifact: objects in JSON that ask for no code and for no other weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import ArtifactError, CheckpointError
from slimformer.models import weights
from slimformer.models.trust import CODE_KEYS, trusted

if TYPE_CHECKING:
    from pathlib import Path

#: Keys that make Transformers read other weights than the checked ones.
DIVERTING_KEYS = frozenset({"transformers_weights"})


def read_config(path: Path) -> dict[str, Any]:
    """Read one config of an artifact as a JSON object."""
    try:
        return weights.read_config(path)
    except CheckpointError as error:
        raise ArtifactError(str(error)) from error


def check_configs(folder: Path) -> None:
    """Refuse every config of `folder` that asks for code, or that leads away from the folder's weights."""
    for path in sorted(folder.glob("*config.json")):
        keys = _all_keys(read_config(path))
        for key in sorted(keys & DIVERTING_KEYS):
            raise ArtifactError(f"`{path}` leads to other weights by `{key}`; remove the key")
        for key in sorted(keys & CODE_KEYS):
            if not trusted():
                raise ArtifactError(
                    f"`{path}` asks to run code by `{key}`; load with trust_remote_code=True if you trust it"
                )


def _all_keys(content: object) -> set[str]:
    keys: set[str] = set()
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            keys.update(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return keys
