"""Tokenizers and image processors of a checkpoint; one that is broken or another model's is refused before work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError, describe
from slimformer.files import as_path
from slimformer.models.names import ALIASES, first_sentence, load_config, quiet, resolve, sees_images
from slimformer.models.processors.backend import check_backend
from slimformer.models.trust import code_refused, trusted
from slimformer.models.weights import read_config
from slimformer.panics import panics_raised

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

#: Files that tell of a processor, and the class that reads them; tried in order.
PROCESSORS = (
    ("processor_config.json", "AutoProcessor"),
    ("preprocessor_config.json", "AutoImageProcessor"),
    ("tokenizer_config.json", "AutoTokenizer"),
)


#: Files of tokenizers and image processors, each an object in JSON.
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
)
#: A pair of texts that every tokenizer reads.
TRIAL = ("a fine film", "isn't it?")


def load_processor(name: str | Path) -> Any:
    """Load a checkpoint's tokenizer, or its image processor where it is a vision model."""
    return read_processor(resolve(name), load_config(name), name)


def read_processor(source: str, config: PretrainedConfig, name: str | Path) -> Any:
    """Load the tokenizer or image processor of a model whose config is known.

    Args:
        source: The folder or Hub name that has its files.
        config: The model's config.
        name: What messages call the model.
    """
    import transformers

    folder = Path(source)
    known = {"config": config} if folder.is_dir() and not (folder / "config.json").is_file() else {}
    auto = "AutoImageProcessor" if sees_images(config) else "AutoTokenizer"
    what = "image processor" if auto == "AutoImageProcessor" else "tokenizer"
    if what == "tokenizer":
        check_backend(Path(source), str(name))
    try:
        with quiet(), panics_raised():
            processor = getattr(transformers, auto).from_pretrained(source, trust_remote_code=trusted(), **known)
    except Exception as error:
        refused = code_refused(str(name), error)
        if refused is not None:
            raise refused from error
        check_objects(Path(source))
        raise CheckpointError(
            f"`{name}` has no {what} that loads: {first_sentence(error)}; put its files into the folder"
        ) from error
    if what == "tokenizer":
        check_tokenizer(processor, config, str(name))
    return processor


def check_objects(folder: Path) -> None:
    """Refuse files of a tokenizer or image processor that are no objects in JSON; for those that did not load."""
    for file in FILES:
        if (folder / file).exists():
            read_config(folder / file)


def check_tokenizer(processor: Any, config: PretrainedConfig, name: str) -> None:
    """Refuse a tokenizer that does not work, that knows more than the model does, or that was made up without files."""
    from transformers import PreTrainedTokenizerBase

    tokenizer = getattr(processor, "tokenizer", processor)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        if hasattr(tokenizer, "image_processor_type") or sees_images(config):
            return
        raise CheckpointError(
            f"the tokenizer of `{name}` is a `{type(tokenizer).__name__}` by its files, which reads no text; mend "
            "`tokenizer_class` in its tokenizer_config.json"
        )
    files = getattr(tokenizer, "vocab_files_names", None) or {}
    needed = [file for key, file in files.items() if key in ("vocab_file", "merges_file")]
    if files and not has_file(name, "tokenizer.json") and not (needed and all(has_file(name, file) for file in needed)):
        raise CheckpointError(
            f"`{name}` has no files of a tokenizer, such as `tokenizer.json`; put those it was trained with into the "
            "folder"
        )
    _check_attributes(tokenizer, name)
    _check_pieces(tokenizer, name)
    check_vocabulary(processor, config, name)
    _check_trial(tokenizer, config, name)


def _check_attributes(tokenizer: Any, name: str) -> None:
    length, names = tokenizer.model_max_length, tokenizer.model_input_names
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1:
        raise CheckpointError(
            f"tokenizer_config.json of `{name}` has `model_max_length` `{describe(length)}`, which is no number of "
            "tokens; give the number the model takes"
        )
    if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
        raise CheckpointError(
            f"tokenizer_config.json of `{name}` has `model_input_names` `{describe(names)}`, which is no list of "
            "names; remove it"
        )


def _check_pieces(tokenizer: Any, name: str) -> None:
    """Refuse two pieces of one number: only one of them is written when the tokenizer is saved."""
    if not tokenizer.is_fast:
        return
    numbers = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    pieces = {number: piece for piece, number in numbers.items()}
    if len(pieces) < len(numbers):
        number = next(number for piece, number in numbers.items() if pieces[number] != piece)
        twice = sorted(piece for piece, other in numbers.items() if other == number)
        raise CheckpointError(
            f"`{describe(twice[0])}` and `{describe(twice[1])}` are both piece {number} of the tokenizer of `{name}`; "
            "take its files from where the model was made"
        )


def _check_trial(tokenizer: Any, config: PretrainedConfig, name: str) -> None:
    """Let a tokenizer read a text and a pair: what its files say of special tokens of either is used there first."""
    try:
        with quiet(), panics_raised():
            single, pair = tokenizer(TRIAL[0]), tokenizer(*TRIAL)
    except Exception as error:
        raise CheckpointError(
            f"the tokenizer of `{name}` does not read a text: {first_sentence(error)}; copy its files again"
        ) from error
    _check_ids(max([*single["input_ids"], *pair["input_ids"]], default=-1), config, name)
    # Of a text alone: a model with one type of token answers texts, if no pairs; one with none ignores types.
    largest, types = max(single.get("token_type_ids", ()), default=0), getattr(config, "type_vocab_size", None)
    if types and largest >= types:
        raise CheckpointError(
            f"the tokenizer of `{name}` gives a text the token type {largest:,}, and the model knows {types:,} from 0; "
            "take the tokenizer the model was trained with"
        )


def check_vocabulary(processor: Any, config: PretrainedConfig, name: str) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding for."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if hasattr(tokenizer, "get_vocab"):
        _check_ids(max(tokenizer.get_vocab().values(), default=-1), config, name)


def _check_ids(largest: int, config: PretrainedConfig, name: str) -> None:
    size = getattr(config.get_text_config(), "vocab_size", None)
    if size is not None and largest >= size:
        raise CheckpointError(
            f"the tokenizer of `{name}` has tokens up to number {largest:,}, and the model knows {size:,}; take the "
            "tokenizer the model was trained with, or resize the model's embeddings"
        )


def has_file(name: str, file: str) -> bool:
    """Whether a checkpoint has a file."""
    source = name if name not in ALIASES and as_path(name).is_dir() else resolve(name)
    return (Path(source) / file).is_file()


def processor_class(files: Any) -> tuple[str, str] | None:
    """The file that tells of a processor among the names of a folder's files, and the class that reads it."""
    return next(((file, auto) for file, auto in PROCESSORS if file in files), None)


def name_padding(model: PreTrainedModel, processor: Any) -> None:
    """Tell a decoder's head, which looks for the last token that is not padding, what padding is."""
    if getattr(model.config, "pad_token_id", None) is None and hasattr(processor, "pad_token_id"):
        pad = processor.pad_token_id
        model.config.pad_token_id = processor.eos_token_id if pad is None else pad
