"""How a run is carried out, whatever it computes: the options every method takes beside its config."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from slimformer.config import Config

    AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True)
class RunOptions:
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


def configure(
    config_class: type[AnyConfig], config: AnyConfig | None, values: dict[str, Any]
) -> tuple[AnyConfig, RunOptions]:
    """The config and the run options a method was called with.

    Args:
        config_class: The method's config.
        config: Settings as a whole; those in `values` win over it.
        values: Fields of the config and of `RunOptions`, by name.
    """
    names = {field.name for field in fields(RunOptions)}
    options = RunOptions(**{name: value for name, value in values.items() if name in names})
    settings = {name: value for name, value in values.items() if name not in names}
    if config is None or settings:
        config = config_class.make({**(config.given() if config is not None else {}), **settings})
    return config, options
