"""Texts and pairs of them: what several kinds of task read from a row, take of a request and feed a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError, describe
from slimformer.tasks.columns import shows_nothing
from slimformer.tasks.encoding import TextEncoder
from slimformer.tasks.features import Features

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.readers import Row
    from slimformer.tasks.splits import Example, Split


#: Characters of a text; tokenising more takes minutes, and mostly a quote was not closed.
MOST_CHARACTERS = 2**20


class IncompleteRowError(DataError):
    """A row lacks its text or its choices; some presets leave such rows out."""


def text_of(row: Row, column: str) -> str:
    """The text in a column; a missing or blank one is an error."""
    value = row.values.get(column)
    if not isinstance(value, str):
        raise IncompleteRowError(
            f"{row.at()}: column `{column}` holds `{describe(value)}` and no text; mend the row or remove it"
        )
    if shows_nothing(value):
        raise IncompleteRowError(f"{row.at()}: the text in column `{column}` is empty; mend the row or remove it")
    if len(value) > MOST_CHARACTERS:
        raise DataError(
            f"{row.at()}: the text in column `{column}` has {len(value):,} characters, more than {MOST_CHARACTERS:,}; "
            "cut it, or close the quote before it"
        )
    return value.strip()


def texts_of(row: Row, columns: Columns) -> Example:
    """`text`, and `text_pair` when there are two columns that are not to be joined."""
    if columns.join_text:
        return {"text": " ".join(text_of(row, column) for column in columns.text)}
    if len(columns.text) > 2:
        listed = ", ".join(f"`{column}`" for column in columns.text)
        raise DataError(f"text_column names {listed}, and a model takes one text or a pair; name two at most")
    names = ("text", "text_pair")
    return {name: text_of(row, column) for name, column in zip(names, columns.text, strict=False)}


def texts_in(kind: Kind, request: Any) -> Example:
    """The text or the pair in a request."""
    if isinstance(request, str):
        request = {"text": request}
    elif isinstance(request, (tuple, list)) and len(request) == 2:
        request = dict(zip(("text", "text_pair"), request, strict=True))
    if not isinstance(request, Mapping) or not isinstance(request.get("text"), str):
        raise kind.unfit(request)
    example = {"text": request["text"]}
    if request.get("text_pair") is not None:
        example["text_pair"] = request["text_pair"]
    for name, text in example.items():
        if not isinstance(text, str):
            raise kind.unfit(request)
        if shows_nothing(text):
            raise DataError(f"the {name} of a request is empty; give {kind.request}")
        if len(text) > MOST_CHARACTERS:
            raise DataError(
                f"the {name} of a request has {len(text):,} characters, more than {MOST_CHARACTERS:,}; cut it"
            )
    return example


def text_features(split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int, *, label: bool = True) -> Features:
    """Tokenise texts or pairs; in a pair that is too long, the longer text is cut first."""
    check_length(tokenizer, max_length)
    inputs: list[dict[str, Any]] = [{} for _ in split]
    encoder = TextEncoder(tokenizer)
    # Requests may be texts and pairs in turn; a pair has special tokens of its own.
    for paired in (False, True):
        chosen = [index for index, example in enumerate(split) if ("text_pair" in example) == paired]
        if not chosen:
            continue
        pairs = [split[index]["text_pair"] for index in chosen] if paired else None
        encoded = encoder.inputs([split[index]["text"] for index in chosen], pairs, max_length)
        for index, item in zip(chosen, encoded, strict=True):
            inputs[index] = {**item, "labels": split[index]["label"]} if label else item
    return Features(inputs)


def need_fast(tokenizer: PreTrainedTokenizerBase, task: str) -> None:
    """Refuse a tokenizer that cannot tell where its tokens stand in the text."""
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"{task} needs to know where tokens stand in the text, which `{type(tokenizer).__name__}` cannot tell; "
            "use a fast tokenizer (a checkpoint with tokenizer.json)"
        )


def check_length(tokenizer: PreTrainedTokenizerBase, max_length: int, least: int = 3) -> None:
    """Refuse a length that the model cannot take or that leaves no room for text."""
    longest = tokenizer.model_max_length
    if max_length > longest:
        raise DataError(
            f"max_length `{max_length}` is more than the {longest} tokens the tokenizer allows; give {longest} or less"
        )
    if max_length < least:
        raise DataError(f"max_length `{max_length}` leaves no room for text; give at least {least}")


def texts_of_example(kind: Kind, example: Example) -> Iterator[str]:
    """All texts that a model reads of an example: those a request has, word by word where it has words, and choices."""
    for name in (*kind.fields, "choices"):
        value = example.get(name, ())
        yield from (value,) if isinstance(value, str) else value
