"""What a run notes of itself in its artifact, and how it is known again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer import artifact
from slimformer.artifact.layout import MANIFEST

if TYPE_CHECKING:
    from slimformer.methods.place import Place
    from slimformer.train import Trained

#: What a run notes of itself beside its settings.
COUNTS = ("steps", "kept_step")


def step_of(method: str, settings: dict[str, Any], seed: int, trained: Trained, command: str | None) -> artifact.Step:
    """The entry of a run in the chain of steps."""
    counts = dict(zip(COUNTS, (trained.steps, trained.kept_step), strict=True))
    return artifact.Step(
        method=method, config={**settings, **counts}, seed=seed, duration_s=trained.seconds, command=command
    )


def counts_of(step: artifact.Step) -> dict[str, Any]:
    """How many steps a run took and which step's weights it kept."""
    return {name: step.config[name] for name in COUNTS}


def finished(place: Place, method: str, settings: dict[str, Any]) -> artifact.Loaded | None:
    """The artifact of a run that had ended before it was asked to resume, if it is this very run's.

    Args:
        place: Where the result would go.
        method: Name of the method.
        settings: Its settings, without what is found out on the way.
    """
    if place.out is None or not (place.out / MANIFEST).exists():
        return None
    loaded = artifact.load(place.out)
    step = loaded.manifest.steps[-1]
    if step.method != method or any(step.config.get(name) != value for name, value in settings.items()):
        return None
    place.clear()
    return loaded
