"""Settings of a run: checked at construction, from flags, a YAML file or Python alike.

A field's description is written once and serves as help of the command line and as reference.
"""

from __future__ import annotations

import difflib
import re
from decimal import Decimal
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from slimformer.counts import MOST, check_threads
from slimformer.errors import ConfigError, UsageError, describe, visible
from slimformer.files import HALF, as_path, texts_in
from slimformer.settings_file import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


#: A count of which there is at least one.
Positive = Annotated[int, Field(ge=1, le=MOST)]
#: Rates, weights and thresholds beyond these vanish in float32, or their products do not fit into it.
LEAST, LARGEST = 1e-12, 1e12
#: Temperatures beyond these leave one class, or all of them alike.
COLDEST, HOTTEST = 1e-3, 1e3
#: A share nearer to 0 or 1 than that is none of any matrix.
LEAST_SHARE = 1e-6


def _check_magnitude(value: float) -> float:
    if not LEAST <= value <= LARGEST:
        raise ValueError(f"give {LEAST:g} to {LARGEST:g}")
    return value


def _check_temperature(value: float) -> float:
    if not COLDEST <= value <= HOTTEST:
        raise ValueError(f"give {COLDEST:g} to {HOTTEST:g}")
    return value


def _check_share(value: float) -> float:
    if not LEAST_SHARE <= value <= 1 - LEAST_SHARE:
        raise ValueError(f"give {LEAST_SHARE:g} to {1 - LEAST_SHARE:g}")
    return value


#: A learning rate, or another number above 0 that tensors are multiplied by.
PositiveNumber = Annotated[float, Field(gt=0), AfterValidator(_check_magnitude)]
#: A weight in a sum, which may be 0.
Weight = Annotated[float, Field(ge=0, le=LARGEST)]
#: What logits are divided by.
Temperature = Annotated[float, Field(gt=0), AfterValidator(_check_temperature)]
#: A part of something, neither none of it nor all.
Share = Annotated[float, Field(gt=0, lt=1), AfterValidator(_check_share)]
#: Passes over data.
Epochs = Annotated[float, Field(gt=0, le=1e6)]
#: What a count or a number of bytes may end with, in lower case, and how many that is.
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_COUNTS = {**_THOUSANDS, "b": 10**9}  # a billion, as in a model of 7B
_BYTES = {f"{unit}{end}": count for unit, count in _THOUSANDS.items() for end in ("", "b")}
_BYTES |= {f"{unit}ib": 2 ** (10 * power) for power, unit in enumerate("kmgt", start=1)}
#: No model is as large as that, and what is computed with it still fits into 64 bits.
_MOST_SIZE = 2**60


def _parse_size(value: Any, units: Mapping[str, int], example: str) -> int | None:
    """A size as a number, from a number or from a text with a unit; parts of one are left out."""
    if value is None:
        return None
    text = f"{value:f}" if isinstance(value, float) else str(value).strip()
    written = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)", text)
    if written is None or isinstance(value, bool) or written[2].lower() not in units:
        raise ValueError(f"give a size such as {example}")
    size = Decimal(written[1].replace("_", "")) * units[written[2].lower()]
    if not 1 <= size <= _MOST_SIZE:
        raise ValueError(f"give a size of 1 to {_MOST_SIZE}, such as {example}")
    return int(size)


def parse_bytes(value: Any) -> int | None:
    """A number of bytes: `10MB` is ten million, `9.5 MiB` counts in powers of 1024; else a `ValueError`."""
    return _parse_size(value, _BYTES, "`10MB`, `9.5MiB` or `10000000`")


def parse_count(value: Any) -> int | None:
    """A number of parameters: `2.5M`, `250k`, `7B` or plain digits; else a `ValueError`."""
    return _parse_size(value, _COUNTS, "`2.5M`, `250k` or `2500000`")


#: A budget of bytes, and one of whatever else is counted, such as parameters.
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Count = Annotated[int, BeforeValidator(parse_count)]
Threads = Annotated[int, AfterValidator(check_threads)]


def split_items(value: Any) -> Any:
    """Accept one text with commas as well as a list."""
    if value is None:
        return None
    items = [value] if isinstance(value, str) else list(value)
    return tuple(name.strip() for item in items for name in str(item).split(","))


class Config(BaseModel):
    """Base of all settings: unknown keys and impossible values are errors that name key and value."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _texts_say_something(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            for text in texts_in(value):
                # A run that is recorded could not be written down; bytes of a path that are no UTF-8 come as halves.
                if HALF.search(text):
                    raise ValueError(f"`{visible(str(key))}` is `{visible(text)}`, which is not UTF-8; rename it")
                # As a variable of the shell that was not set is given.
                if not text:
                    raise ValueError(f"`{visible(str(key))}` is ``; give a value, or leave it out")
        return values

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
        for key, value in plain.items():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field is not None and not _takes_bool(field.annotation):
                raise ConfigError(f"{source}`{key}` is `{value}`; give a number or a text, in quotes if need be")
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise ConfigError(source + explain(error, cls)) from error

    def refuse_idle(self, idle: Mapping[str, tuple[bool, str]]) -> None:
        """Refuse settings that would change nothing.

        Args:
            idle: Name of a setting → whether it has no effect, and what it would need.
        """
        for name, (unused, needed) in idle.items():
            value = getattr(self, name)
            # Settings that were written out as a whole name the defaults too, which nobody chose.
            if unused and value != type(self).model_fields[name].default:
                raise ValueError(f"`{name}` is {value} and changes nothing without {needed}; leave it out")

    @classmethod
    def read(cls, file: str | Path | None, given: Mapping[str, Any]) -> Self:
        """Build from a YAML file and values given besides, which win."""
        if file is None:
            return cls.make(given)
        cls.make({**(stored := read_settings(as_path(file)))}, source=f"`{file}`: ")
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


def _takes_bool(annotation: Any) -> bool:
    """Whether a field may be true or false; YAML reads `on` and `yes` so, and Python takes these for 1."""
    return annotation in (bool, Any) or any(_takes_bool(each) for each in get_args(annotation))


def explain(error: ValidationError, config: type[BaseModel], *, flags: bool = False) -> str:
    """The first thing wrong with some settings, in one line; with `flags`, settings are called by their flags."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if flags and name:
        name = f"--{name.replace('_', '-')}"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, config.model_fields, n=1)
        meant = f" (do you mean `{near[0]}`?)" if near else ""
        return f"there is no setting `{name}`{meant}; known: {', '.join(sorted(config.model_fields))}"
    if first["type"] == "string_type":
        return f"`{name}` is `{describe(first['input'])}`: should be a text, in quotes if need be"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not name:
        return message
    return f"`{name}` is `{describe(first['input'])}`: {message[0].lower() + message[1:]}"


def first_problem(error: ValidationError) -> str:
    """The first thing wrong with a file, as what follows its name in a message."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"has the unknown key `{key}`"
    if first["type"] == "missing":
        return f"lacks the key `{key}`"
    seen = repr(first["input"])
    shown = seen if len(seen) <= 60 else seen[:60] + "…"
    return f"has a wrong `{key or 'content'}`: {first['msg'].lower()}, seen {shown}"
