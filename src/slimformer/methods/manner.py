"""How a run is carried out, whatever it computes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from slimformer.config import Config

AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True)
class Manner:
    """What changes how a run goes and not what comes out; every method takes these by name.

    Args:
        resume: Go on with an unfinished run, or start one if there is none.
        overwrite: Replace a result that is there.
        quiet: Say nothing while training.
        command: The command line, for the record.
    """

    resume: bool = False
    overwrite: bool = False
    quiet: bool = False
    command: str | None = None


def configure(kind: type[AnyConfig], config: AnyConfig | None, given: dict[str, Any]) -> tuple[AnyConfig, Manner]:
    """The config and the manner a method was called with.

    Args:
        kind: The method's config.
        config: Settings as a whole; those in `given` win over it.
        given: Fields of the config and of `Manner`, by name.
    """
    names = {field.name for field in fields(Manner)}
    manner = Manner(**{name: value for name, value in given.items() if name in names})
    settings = {name: value for name, value in given.items() if name not in names}
    if config is None or settings:
        config = kind.make({**(config.given() if config is not None else {}), **settings})
    return config, manner
