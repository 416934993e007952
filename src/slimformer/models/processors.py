"""What prepares a model's inputs: its tokenizer or image processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError
from slimformer.models.config import load_config, sees_images
from slimformer.models.names import first_sentence, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

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
