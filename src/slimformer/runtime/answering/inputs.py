"""What a model is asked, checked: texts, pairs of texts, and settings that are not for the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError, DataError, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A text, or two that are read together.
Text = str | tuple[str, str]

#: Settings of pipelines and of sentence-transformers that the engine has no use for → what to do instead.
ELSEWHERE = {
    "chunk_size": "leave it out: one process answers, with as many threads as `NativeModel` was given",
    "convert_to_numpy": "leave it out: vectors are in NumPy",
    "convert_to_tensor": "leave it out, and make tensors by torch.from_numpy(...): the engine does not import torch",
    "device": "leave it out: the engine computes on the CPU",
    "doc_stride": "leave it out: windows of a context overlap by 128 tokens, shorter ones by less than half",
    "dtype": "leave it out: weights are read as they are stored",
    "is_split_into_words": "give a text, its words joined by spaces",
    "max_length": "give it where the model is opened: NativeModel(folder, max_length=...)",
    "max_seq_len": "give it where the model is opened: NativeModel(folder, max_length=...)",
    "output_value": "leave it out, and take the rows of tokens from `encoder.run`",
    "pool": "leave it out: one process answers, with as many threads as `NativeModel` was given",
    "precision": "leave it out, and round the vectors yourself",
    "stride": "cut the text before: what is beyond `max_length` is not read",
    "timeout": "leave it out: images are read from files",
}


def refuse_settings(settings: Mapping[str, Any], usual: Mapping[str, Sequence[Any]] | None = None) -> None:
    """Refuse settings by name, but for values that say what is done anyway.

    Args:
        settings: What was given and is not read.
        usual: Name → the values that change nothing.
    """
    for name, value in settings.items():
        if any(value is each or (type(value) is type(each) and value == each) for each in (usual or {}).get(name, ())):
            continue
        instead = ELSEWHERE.get(name, "leave it out, or take `engine` out and ask Transformers")
        raise ConfigError(f"`{name}` is `{describe(value)}`, which the native engine does not take; {instead}")


def as_list(asked: Any, alone: type | tuple[type, ...]) -> list[Any]:
    """What was given as a list; something of the types `alone` is one thing to ask, everything else several.

    Raises:
        DataError: Where there is nothing.
    """
    listed = [asked] if isinstance(asked, alone) else list(asked) if isinstance(asked, Iterable) else []
    if not listed:
        raise DataError(f"`{describe(asked)}` is no text; give at least one")
    return listed


def as_texts(asked: Any) -> list[Text]:
    """Texts, each alone or a pair: a tuple of two, or a dict of `text` and `text_pair` as pipelines take it."""
    return [_pair(each) for each in as_list(asked, (str, tuple, Mapping))]


def as_single_texts(asked: Any) -> list[str]:
    """Texts, none of them a pair."""
    texts = as_list(asked, (str, Mapping))
    for each in texts:
        if not isinstance(each, str):
            raise DataError(f"`{describe(each)}` is no text; give texts")
    return texts


def _pair(asked: Any) -> Text:
    parts: Any = asked
    if isinstance(asked, Mapping):
        unknown = [name for name in asked if name not in ("text", "text_pair")]
        if unknown:
            raise DataError(f"`{describe(asked)}` has the key `{describe(unknown[0])}`; give `text` and `text_pair`")
        parts = tuple(asked[name] for name in ("text", "text_pair") if asked.get(name) is not None)
    parts = parts if isinstance(parts, tuple) else (parts,)
    if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
        raise DataError(f"`{describe(asked)}` is no text; give texts or pairs of them")
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])
