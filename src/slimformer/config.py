"""Settings of a run: checked at construction, from flags, a YAML file or Python alike.

A field's description is written once and serves as help of the command line and as reference.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slimformer.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A count of which there is at least one.
Positive = Annotated[int, Field(ge=1)]


class Config(BaseModel):
    """Base of all settings: unknown keys and impossible values are errors that name key and value."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @classmethod
    def make(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Build from plain values; whatever is wrong becomes a one-line `ConfigError`.

        Args:
            values: Field names, with dashes or underscores, to values; a path counts as text.
            source: Where the values come from, for the error: `run.yaml: `.
        """
        plain = {
            key.replace("-", "_"): str(value) if isinstance(value, PurePath) else value for key, value in values.items()
        }
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise ConfigError(source + explain(error, cls)) from error

    @classmethod
    def read(cls, file: str | Path | None, given: Mapping[str, Any]) -> Self:
        """Build from a YAML file and values given besides, which win."""
        if file is None:
            return cls.make(given)
        cls.make({**(stored := _read_yaml(Path(file)))}, source=f"`{file}`: ")
        return cls.make({**{key.replace("-", "_"): value for key, value in stored.items()}, **given})

    def given(self) -> dict[str, Any]:
        """The values that were set, without defaults."""
        return self.model_dump(exclude_unset=True)

    def require(self, *names: str) -> None:
        """Raise where one of these fields was left empty."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            *rest, last = (f"`--{name.replace('_', '-')}`" for name in missing)
            flags = f"{', '.join(rest)} and {last}" if rest else last
            raise UsageError(f"{flags} must be given, as a flag or in the config file")


def explain(error: ValidationError, config: type[BaseModel], *, flags: bool = False) -> str:
    """The first thing wrong with some settings, in one line; with `flags`, settings are called by their flags."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if flags and name:
        name = f"--{name.replace('_', '-')}"
    if first["type"] == "extra_forbidden":
        return f"there is no setting `{name}`; known: {', '.join(sorted(config.model_fields))}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not name:
        return message
    return f"`{name}` is `{first['input']}`: {message[0].lower() + message[1:]}"


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except FileNotFoundError:
        raise ConfigError(f"no config file at `{path}`; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` cannot be read: {error}; give a YAML file in UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"`{path}` is not valid YAML: {' '.join(str(error).split())}; mend it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"`{path}` holds a {type(content).__name__}; write one `setting: value` per line")
    # The parser keeps the last of several values without a word.
    names = [str(key.value).replace("-", "_") for key, _ in yaml.compose(text, yaml.SafeLoader).value]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"`{path}`: `{name}` is there twice; keep one of them")
    return {str(key): value for key, value in content.items()}
