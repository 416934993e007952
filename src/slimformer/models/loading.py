"""Weights, classes and processors of a checkpoint; whatever does not fit is an error before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slimformer.errors import CheckpointError
from slimformer.models.names import first_sentence, load_config, quiet, resolve, sees_images
from slimformer.models.trust import code_refused, needs_code, trusted
from slimformer.models.weights import check_size, not_finite, tensor_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transformers import PretrainedConfig, PreTrainedModel


def load_skeleton(name: str | Path) -> PreTrainedModel:
    """Build a checkpoint's model on the meta device: every shape and type, no memory and no weights."""
    import torch

    config = load_config(name)
    model_class = stored_class(config, str(name))
    with torch.device("meta"):
        skeleton: Any = _build(model_class, config, str(name))
    return cast("PreTrainedModel", skeleton.to(config.dtype or torch.float32))


def _build(model_class: Any, config: PretrainedConfig, name: str, **dtype: Any) -> PreTrainedModel:
    """A model of a config with new weights, of the type the config names unless told otherwise."""
    try:
        if hasattr(model_class, "_model_mapping"):
            return cast("PreTrainedModel", model_class.from_config(config, trust_remote_code=trusted(), **dtype))
        return cast("PreTrainedModel", model_class._from_config(config, **dtype) if dtype else model_class(config))
    except Exception as error:
        raise CheckpointError(
            f"config.json of `{name}` does not build {model_class.__name__}: {_reason(error, config)}"
        ) from error


def _reason(error: Exception, config: PretrainedConfig) -> str:
    """Why a config builds no model; a name that is looked up in vain, such as an activation's, with its setting."""
    looked_up = error.args[0] if isinstance(error, KeyError) and error.args else None
    for key, value in config.to_dict().items():
        if isinstance(value, str) and value == looked_up:
            return f"`{key}` is `{value}`, which Transformers does not know; check its spelling"
    return f"{first_sentence(error)}; check its sizes"


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
    """Refuse a folder without safetensors, or whose config asks for a model of quite another size; weights stay unread.

    What is on the Hub is not here yet, and is not looked at.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        return
    config = load_config(name) if config is None else config
    if getattr(config, "quantization_config", None) is not None:
        return  # how these are stored is for their quantizer to say
    check_fits(str(name), model_class, config, tensor_files(folder))


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
    own = own if isinstance(own, type) else None  # nothing but a class: Transformers has modules and functions too
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
    lacking = {
        key if isinstance(key, str) else key[0] for kind in ("missing_keys", "mismatched_keys") for key in info[kind]
    }
    for key in sorted(_of_base(model, lacking)):
        raise CheckpointError(
            f"`{name}` has no weight that fits `{key}`, so it is not a {type(model).__name__}; "
            "check that the folder holds the model its config.json describes"
        )
    for key in sorted(_of_base(model, info["unexpected_keys"])):
        raise CheckpointError(
            f"`{name}` has a weight `{key}` that has no place in the {type(model).__name__} its config.json describes; "
            "check its sizes, such as the number of blocks"
        )
    for key in sorted(lacking) if whole else ():
        if "pooler" not in key:
            raise CheckpointError(
                f"`{name}` has no trained head: its weights lack `{key}` of a {type(model).__name__}; "
                "fine-tune it first, or give a checkpoint that has one"
            )


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
    config = load_config(name)
    auto = "AutoImageProcessor" if sees_images(config) else "AutoTokenizer"
    try:
        processor = getattr(transformers, auto).from_pretrained(source, trust_remote_code=trusted())
    except Exception as error:
        refused = code_refused(str(name), error)
        if refused is not None:
            raise refused from error
        what = "image processor" if auto == "AutoImageProcessor" else "tokenizer"
        raise CheckpointError(
            f"`{name}` has no {what} that loads: {first_sentence(error)}; put its files into the folder"
        ) from error
    check_tokenizer(processor, config, str(name))
    return processor


def check_tokenizer(processor: Any, config: PretrainedConfig, name: str) -> None:
    """Refuse a tokenizer that was made up because there are no files of one, or that knows more than the model does."""
    tokenizer = getattr(processor, "tokenizer", processor)
    files = getattr(tokenizer, "vocab_files_names", None) or {}
    needed = [file for key, file in files.items() if key in ("vocab_file", "merges_file")]
    if (
        files
        and not _has_file(name, "tokenizer.json")
        and not (needed and all(_has_file(name, file) for file in needed))
    ):
        raise CheckpointError(
            f"`{name}` has no files of a tokenizer, such as `tokenizer.json`; put those it was trained with into the "
            "folder"
        )
    check_vocabulary(processor, config, name)


def check_vocabulary(processor: Any, config: PretrainedConfig, name: str) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding for."""
    tokenizer = getattr(processor, "tokenizer", processor)
    size = getattr(config.get_text_config(), "vocab_size", None)
    if size is None or not hasattr(tokenizer, "get_vocab"):
        return
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= size:
        raise CheckpointError(
            f"the tokenizer of `{name}` has tokens up to number {largest:,}, and the model knows {size:,}; take the "
            "tokenizer the model was trained with, or resize the model's embeddings"
        )


def _has_file(name: str, file: str) -> bool:
    """Whether a checkpoint has a file: in its folder, or in the cache of the Hub once that was asked for it."""
    from transformers.utils.hub import cached_file

    source = resolve(name)
    if Path(source).is_dir():
        return (Path(source) / file).is_file()
    path = cached_file(
        source,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return path is not None


def processor_class(files: Any) -> tuple[str, str] | None:
    """The file that tells of a processor among the names of a folder's files, and the class that reads it."""
    return next(((file, auto) for file, auto in PROCESSORS if file in files), None)


def name_padding(model: PreTrainedModel, processor: Any) -> None:
    """Tell a decoder's head, which looks for the last token that is not padding, what padding is."""
    if getattr(model.config, "pad_token_id", None) is None and hasattr(processor, "pad_token_id"):
        pad = processor.pad_token_id
        model.config.pad_token_id = processor.eos_token_id if pad is None else pad
