"""A YAML file of settings: plain ones, named once, and no more of them than a run can have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError, describe
from slimformer.files import HALF, START, conversion, read_limited, why_no_text

if TYPE_CHECKING:
    from pathlib import Path

    import yaml

#: Settings take a few hundred bytes; more than so many, and more values than so many, are no settings.
_BYTES, _VALUES = 2**20, 10_000


def read_settings(path: Path) -> dict[str, Any]:
    """Settings by their names; a `ConfigError` where the file holds anything else."""
    import yaml

    try:
        stored = read_limited(path, _BYTES)
        reason = why_no_text(stored[:START])
        if reason is not None:
            raise ConfigError(f"`{path}` {reason}")
        content = _parse_yaml(stored.decode())
    except FileNotFoundError:
        raise ConfigError(f"no config file at `{path}`; check the path") from None
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}; give a YAML file of settings") from error
    except UnicodeDecodeError as error:
        byte = f"byte `0x{error.object[error.start]:02x}` at position {error.start + 1}"
        raise ConfigError(f"`{path}` cannot be read: {byte} is not UTF-8; {conversion('latin1')}") from error
    except RecursionError:
        raise ConfigError(f"`{path}` is nested too deeply; write one `setting: value` per line") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"`{path}` is not valid YAML: {_where(error)}; mend it") from error
    except ValueError as error:  # also of dates that are none, and of numbers of thousands of digits
        raise ConfigError(f"`{path}` cannot be read: {error}; mend it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"`{path}` holds a {type(content).__name__}; write one `setting: value` per line")
    return {str(key): value for key, value in content.items()}


def _where(error: yaml.YAMLError) -> str:
    """What a parser of YAML stopped at and in which line, without the lines it quotes."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"{problem.removeprefix('but ')} in line {mark.line + 1}"


def _parse_yaml(text: str) -> Any:
    """The content of a YAML text; a `ValueError` where it is more than plain settings."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node: Any = loader.get_single_node()
        if node is None:
            return None
        # Before anything is made of it: a few lines of aliases can stand for gigabytes.
        _count_values(node, {})
        if isinstance(node, yaml.MappingNode):
            _check_keys([key.value for key, _ in node.value])
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_keys(keys: list[Any]) -> None:
    if not all(isinstance(key, str) for key in keys):
        raise ValueError("a list or a mapping stands where a setting is named")
    # The parser keeps the last of several values without a word.
    names = [key.replace("-", "_") for key in keys]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"`{name}` is there twice, keep one of them")


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """How many values a node stands for once its aliases are written out."""
    if isinstance(node.value, str):
        if HALF.search(node.value):
            raise ValueError(f"`{describe(node.value)}` holds half of a character")
        return 1
    if id(node) not in counts:
        counts[id(node)] = 0  # stands for "being counted"
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in parts)
    if counts[id(node)] == 0:
        raise ValueError("an alias stands for what it is part of")
    if counts[id(node)] > _VALUES:
        raise ValueError(f"with its aliases it stands for more than {_VALUES:,} values")
    return counts[id(node)]
