"""Weights, classes and processors of a checkpoint; whatever does not fit is an error before anything is trained."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from slimformer.errors import CheckpointError
from slimformer.models.names import first_sentence, load_config, resolve, sees_images

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel


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
            f"config.json of `{name}` does not build {architecture}: {first_sentence(error)}; check its sizes"
        ) from error
    skeleton = skeleton.to(config.dtype or torch.float32)
    return cast("PreTrainedModel", skeleton)


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
        raise CheckpointError(
            f"weights of `{name}` cannot be loaded: {first_sentence(error)}; check the folder"
        ) from error
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

    base = load_model(name, stored_class(load_config(name)))
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
    stored = stored_class(config)
    return bool(getattr(stored, "base_model_prefix", wanted.base_model_prefix) != wanted.base_model_prefix)


def stored_class(config: PretrainedConfig) -> Any:
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


#: Files that tell of a processor, and the class that reads them; tried in order.
PROCESSORS = (
    ("processor_config.json", "AutoProcessor"),
    ("preprocessor_config.json", "AutoImageProcessor"),
    ("tokenizer_config.json", "AutoTokenizer"),
)


def load_processor(name: str | Path) -> Any:
    """Load a checkpoint's tokenizer, or its image processor where it is a vision model."""
    import transformers

    source = resolve(name)
    auto = "AutoImageProcessor" if sees_images(load_config(name)) else "AutoTokenizer"
    try:
        return getattr(transformers, auto).from_pretrained(source)
    except Exception as error:
        what = "image processor" if auto == "AutoImageProcessor" else "tokenizer"
        raise CheckpointError(
            f"`{name}` has no {what} that loads: {first_sentence(error)}; put its files into the folder"
        ) from error


def processor_class(files: Any) -> tuple[str, str] | None:
    """The file that tells of a processor among the names of a folder's files, and the class that reads it."""
    return next(((file, auto) for file, auto in PROCESSORS if file in files), None)


def name_padding(model: PreTrainedModel, processor: Any) -> None:
    """Tell a decoder's head, which looks for the last token that is not padding, what padding is."""
    if getattr(model.config, "pad_token_id", None) is None and hasattr(processor, "pad_token_id"):
        pad = processor.pad_token_id
        model.config.pad_token_id = processor.eos_token_id if pad is None else pad
