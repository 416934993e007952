"""Changing an artifact and making its sums agree again, as someone who knows the format could."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slimformer.artifact import Manifest, fingerprint
from slimformer.artifact.checks import sum_file
from slimformer.artifact.opening.manifest import canonical, sum_of

if TYPE_CHECKING:
    from pathlib import Path


def resum(folder: Path, **model: Any) -> None:
    """Rewrite `slimformer.json` so that it lists the files as they are now, fingerprint included unless it is given."""
    content = json.loads((folder / "slimformer.json").read_bytes())
    del content["sha256"]
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    content["files"] = {name: sum_file(folder / name) for name in names if name != "slimformer.json"}
    content["model"]["fingerprint"] = model.get("fingerprint") or fingerprint(folder)
    (folder / "slimformer.json").write_bytes(Manifest.model_validate(content).to_bytes())


def rebind(folder: Path) -> None:
    """Let `probe.json` name the sum of `reading.json` as it is now, and make the sums agree."""
    edit(folder / "probe.json", reading=sum_file(folder / "reading.json").sha256)
    resum(folder)


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; the sums are left to `resum`."""
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps({**content, **changes}, indent=2))


def sign(folder: Path, **changes: Any) -> None:
    """Change keys of `slimformer.json` and make its sum over itself agree."""
    content = json.loads((folder / "slimformer.json").read_bytes())
    del content["sha256"]
    content.update(changes)
    (folder / "slimformer.json").write_bytes(signed(content))


def signed(content: dict[str, Any]) -> bytes:
    """The bytes of a manifest with that content and the sum that fits."""
    return canonical({**content, "sha256": sum_of(content)})
