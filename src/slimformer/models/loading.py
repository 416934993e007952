"""Weights and classes of a checkpoint; whatever does not fit is an error before anything is trained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from slimformer.errors import CheckpointError
from slimformer.models.names import first_sentence, load_config, quiet, resolve
from slimformer.models.trust import needs_code, trusted
from slimformer.models.weights import GENERATION, check_size, check_types, not_finite, read_config, tensor_files
from slimformer.models.widths import as_described

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from transformers import PretrainedConfig, PreTrainedModel


#: A model that was loaded → names of its weights that the checkpoint had not.
_NEW: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def new_weights(model: PreTrainedModel) -> frozenset[str]:
    """Names of the weights that `load_model` has drawn at random, such as those of a new head."""
    return _NEW.get(model, frozenset())


def load_skeleton(name: str | Path) -> PreTrainedModel:
    """Build a checkpoint's model on the meta device: every shape and type, no memory and no weights."""
    import torch

    config = load_config(name)
    with torch.device("meta"):
        skeleton: Any = _build(stored_class(config, str(name)), config, str(name))
    return cast("PreTrainedModel", skeleton.to(config.dtype or torch.float32))


def _build(model_class: Any, config: PretrainedConfig, name: str, **dtype: Any) -> PreTrainedModel:
    """A model of a config with new weights, of the type the config names unless told otherwise."""
    try:
        if hasattr(model_class, "_model_mapping"):
            return as_described(model_class.from_config(config, trust_remote_code=trusted(), **dtype))
        return as_described(model_class._from_config(config, **dtype) if dtype else model_class(config))
    except Exception as error:
        raise CheckpointError(
            f"config.json of `{name}` does not build {model_class.__name__}: {_reason(error, model_class, config)}"
        ) from error


def _reason(error: Exception, model_class: Any, config: PretrainedConfig) -> str:
    """Why a config builds no model; a name that is looked up in vain, such as an activation's, with its setting."""
    looked_up = error.args[0] if isinstance(error, KeyError) and error.args else None
    for key, value in config.to_dict().items():
        if isinstance(value, str) and value == looked_up:
            return f"`{key}` is `{value}`, which Transformers does not know; check its spelling"
    own = getattr(getattr(model_class, "config_class", None), "model_type", config.model_type)
    if own != config.model_type:
        return f"its `model_type` is `{config.model_type}`, and the class is for a `{own}`; copy the checkpoint again"
    return f"{first_sentence(error)}; check its settings"


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

    from slimformer.anatomy.anatomy import refuse_beyond

    model_class = _without_decoder(name, model_class)
    if new_head or _calls_base_differently(name, model_class):
        return _load_under_new_head(name, model_class, settings, whole)
    source = resolve(name)
    check_weights(name, model_class, settings.get("config"))
    try:
        with quiet():
            model, info = model_class.from_pretrained(
                source,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=trusted(),
                **settings,
            )
    except Exception as error:
        raise CheckpointError(
            f"weights of `{name}` cannot be loaded: {first_sentence(error)}; check the folder"
        ) from error
    refuse_beyond(model)
    _check_loaded(name, model, info, whole)
    broken = not_finite(model.named_parameters())
    if broken is not None:
        raise CheckpointError(
            f"`{broken}` of `{name}` holds nan or infinity, so it answers nothing; copy the checkpoint again, or take "
            "one from before it diverged"
        )
    return cast("PreTrainedModel", model)


def _without_decoder(name: str | Path, model_class: Any) -> Any:
    """The class for a bare model of a family: of T5, `AutoModel` would open a decoder too."""
    import transformers

    from slimformer.anatomy import family_of, known

    if model_class is not transformers.AutoModel or load_config(name).model_type not in known():
        return model_class
    return getattr(transformers, family_of(load_config(name).model_type).bare)


def check_weights(name: str | Path, model_class: Any, config: PretrainedConfig | None = None) -> None:
    """Refuse a checkpoint without safetensors, or whose config asks for another size; weights stay unread."""
    folder = Path(resolve(name))
    config = load_config(name) if config is None else config
    if getattr(config, "quantization_config", None) is not None:
        return  # how these are stored is for their quantizer to say
    files = tensor_files(folder)
    check_types(files)
    if os.path.lexists(folder / GENERATION):  # Transformers would do without one that it cannot read
        read_config(folder / GENERATION)
    check_fits(str(name), model_class, config, files)


def check_fits(name: str, model_class: Any, config: PretrainedConfig, files: list[Path]) -> None:
    """Refuse a config that asks for a model of quite another size than that in its files."""
    check_size(name, getattr(config, "num_hidden_layers", None), lambda: _build(model_class, config, name), files)


def _load_under_new_head(name: str | Path, model_class: Any, settings: dict[str, Any], whole: bool) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig

    base = load_model(name, stored_class(load_config(name), str(name))).base_model
    with quiet():  # of labels that are about to be others
        own = {"trust_remote_code": trusted(), **settings}
        config = own.get("config") or AutoConfig.from_pretrained(resolve(name), **own)
    model = _build(model_class, config, str(name), dtype=torch.float32)
    # One head may have a pooler that the other does without.
    missing, unexpected = model.base_model.load_state_dict(base.state_dict(), strict=False)
    inside = {id(tensor) for tensor in model.base_model.state_dict(keep_vars=True).values()}
    head = [key for key, tensor in model.state_dict(keep_vars=True).items() if id(tensor) not in inside]
    head += [f"{model.base_model_prefix}.{key}" for key in missing]
    _check_loaded(name, model, {"missing_keys": head, "mismatched_keys": [], "unexpected_keys": unexpected}, whole)
    return cast("PreTrainedModel", model.eval())


def _calls_base_differently(name: str | Path, model_class: Any) -> bool:
    """Whether two heads of a family keep the base under other names, as Llama's for question answering does."""
    config = load_config(name)
    classes = getattr(model_class, "_model_mapping", {}).get(type(config), model_class)
    wanted = classes[0] if isinstance(classes, tuple) else classes
    stored = stored_class(config, str(name))
    return bool(getattr(stored, "base_model_prefix", wanted.base_model_prefix) != wanted.base_model_prefix)


def stored_class(config: PretrainedConfig, name: str) -> Any:
    """The class a checkpoint was saved from: one of Transformers, or one of its own code where that is trusted."""
    import transformers

    architecture = (config.architectures or ["AutoModel"])[0]
    own = getattr(transformers, architecture, None)
    # Nothing but a model that can be built: Transformers has modules, functions and tokenizers too.
    own = own if isinstance(own, type) and issubclass(own, transformers.PreTrainedModel) else None
    own = own if getattr(own, "config_class", None) is not None else None
    brought = [
        auto
        for auto, reference in (getattr(config, "auto_map", None) or {}).items()
        if auto.startswith("AutoModel") and str(reference).rpartition(".")[2] == architecture
    ]
    if brought and trusted():
        return getattr(transformers, brought[0])
    if brought and own is None:
        raise needs_code(name)
    return own or transformers.AutoModel


def _check_loaded(name: str | Path, model: Any, info: dict[str, Any], whole: bool) -> None:
    """Refuse a checkpoint of which a part of the base model is missing or left over.

    What is missing would be trained from random weights, and what is left over would be dropped, both unnoticed.
    """
    shapes = {key[0]: f"{list(key[1])} instead of {list(key[2])}" for key in info["mismatched_keys"]}
    lacking = {*info["missing_keys"], *shapes}
    _NEW[model] = frozenset(lacking)
    for key in sorted(_of_base(model, lacking)):
        raise CheckpointError(
            f"`{name}` has no weight that fits `{key}`{_shaped(shapes, key)}, so it is not a {type(model).__name__}; "
            "check that the folder holds the model its config.json describes"
        )
    for key in sorted(_of_base(model, info["unexpected_keys"])):
        raise CheckpointError(
            f"`{name}` has a weight `{key}` that has no place in the {type(model).__name__} its config.json describes; "
            "check its sizes, such as the number of blocks"
        )
    # The pooler of a bare model is left alone by whoever asks for its hidden states; a head stands on it.
    bare = model.base_model is model
    for key in sorted(lacking) if whole else ():
        if not (bare and "pooler" in key):
            raise CheckpointError(
                f"`{name}` has no trained head: its weights lack `{key}` of a {type(model).__name__}"
                f"{_shaped(shapes, key)}; fine-tune it first, or give a checkpoint that has one"
            )


def _shaped(shapes: Mapping[str, str], key: str) -> str:
    """What is there under a name instead of what is needed, as a message adds it."""
    return f" (there is one of shape {shapes[key]})" if key in shapes else ""


def _of_base(model: Any, keys: Iterable[str]) -> Iterator[str]:
    """The names of weights that belong to a model's base, under its prefix or without; poolers come and go."""
    # A part without weights, such as the blocks of a model that has none, is a part too.
    parts = {
        name for name, _ in (*model.base_model.named_children(), *model.base_model.named_parameters(recurse=False))
    }
    prefix = f"{model.base_model_prefix}."
    for key in keys:
        if "pooler" not in key and (key.startswith(prefix) or key.partition(".")[0] in parts):
            yield key
