"""An artifact as others may see it: the same model, and nothing that tells of the machine it was made on.

Here an artifact remembers what was typed, whole paths included: a run that is resumed is told from others by it, and a
base is known to have read the same data. What is pushed has the last part of a path and says so: `…/reviews`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from typing import TYPE_CHECKING, Any

from slimformer.artifact.card import write_card
from slimformer.artifact.layout import CARD, MANIFEST
from slimformer.artifact.manifest import FileSum, Manifest, Step, read_manifest
from slimformer.artifact.opening.files import check_files
from slimformer.artifact.storage.handler import storage_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: What stands for the folders of a path that are left out.
HIDDEN = "…/"
#: A text that is a path outside the current folder: absolute, of a home, of another drive, or with a way up in it.
_OUTSIDE = re.compile(r"[/~\\]|[A-Za-z]:[\\/]|file:/|(?:.*[/\\])?\.\.(?:[/\\]|\Z)", re.DOTALL)
#: Such a path inside a text, as in `reviews=/data/reviews`; an address such as `https://…` is none.
_INSIDE = re.compile(r"(?<![\w.…/\\~-])(?!//)(?:~[^/\\\s]*|[A-Za-z]:|\.\.)?[/\\][^,;=:'\"]+")


def public_files(folder: Path) -> dict[str, Path | bytes]:
    """The files of an artifact as they are pushed: those on disk, and in place of some of them what others may see.

    Args:
        folder: The artifact, whose sums are compared first.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest.files)
    storage = storage_of(folder, manifest)
    changed: dict[str, bytes] = storage.public(folder)
    content: dict[str, Any] = {
        "model": manifest.model.model_copy(update={"storage": storage.name}),
        "steps": [public_step(step) for step in manifest.steps],
        "base": manifest.base,
        "task": manifest.task,
        "metrics": manifest.metrics,
        "files": {**manifest.files, **_sums(changed)},
    }
    card = write_card(Manifest.model_validate(content)).encode()
    changed[CARD] = card
    public = Manifest.model_validate({**content, "files": {**content["files"], **_sums({CARD: card})}})
    return {**{name: folder / name for name in manifest.files}, **changed, MANIFEST: public.to_bytes()}


def public_step(step: Step) -> Step:
    """A step without the paths of this machine, in its settings and in its command."""
    return step.model_copy(
        update={
            "config": {name: public_value(value) for name, value in step.config.items()},
            "command": None if step.command is None else public_command(step.command),
        }
    )


def public_value(value: Any) -> Any:
    """A setting, however deep its paths lie."""
    if isinstance(value, str):
        return public_text(value)
    if isinstance(value, list):
        return [public_value(each) for each in value]
    if isinstance(value, dict):
        return {public_text(name): public_value(each) for name, each in value.items()}
    return value


def public_text(text: str) -> str:
    """A text with the last part of each path in it; a path below the current folder stays as it was typed."""
    if _OUTSIDE.match(text):
        return _last_part(text)
    return _INSIDE.sub(lambda match: _last_part(match[0]), text)


def public_command(command: str) -> str | None:
    """A command line with its paths cut; None for one that cannot be taken apart."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    return shlex.join(_public_word(word) for word in words)


def is_hidden(text: str) -> bool:
    """Whether a text is what was left of a path."""
    return text.startswith(HIDDEN)


def same_name(hidden: str, path: Path) -> bool:
    """Whether a path could be the one of which this is left."""
    return path.name == hidden.removeprefix(HIDDEN)


def _public_word(word: str) -> str:
    flag, equals, value = word.partition("=")
    if equals and flag.startswith("--"):
        return f"{flag}={public_text(value)}"
    return public_text(word)


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")]
    if not parts:
        return path if len(path) == 1 else HIDDEN  # one sign alone, such as what separates labels, is no path
    return path if path == parts[0] == "~" else HIDDEN + ("" if parts[-1].startswith("~") else parts[-1])


def _sums(files: Mapping[str, bytes]) -> dict[str, FileSum]:
    return {
        name: FileSum(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content)) for name, content in files.items()
    }
