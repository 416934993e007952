"""Predicting tokens of running text, from the left or under a mask."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.features import Features
from slimformer.tasks.kinds.kind import Kind, Rename, check_length
from slimformer.tasks.masking import TokenMasking
from slimformer.tasks.metrics.likelihood import likelihood_metrics
from slimformer.tasks.readers.text import DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

Objective = Literal["causal", "masked"]


class LanguageModelling(Kind):
    """Language modelling on text packed into blocks of `max_length` tokens.

    The lines of a text file are one document; the rows of a table are a document each. Documents follow one
    another in the blocks, with the tokenizer's end (or separator) token after each. The last block may be shorter.

    Under the objective `masked` each block is wrapped in the tokenizer's special tokens, and an item's masks
    are a pure function of (seed, epoch, index): the trainer says `features.set_epoch(n)` when epoch n begins, and a
    resumed run sees what an uninterrupted one would.
    """

    name = "language-modelling"
    metrics = ("perplexity", "loss", "accuracy")
    labelled = False
    in_order = True

    @property
    def objective(self) -> Objective:
        """Which tokens are predicted: the next one, or those under a mask."""
        return "masked" if self.settings.get("objective") == "masked" else "causal"

    @property
    def head(self) -> str:  # type: ignore[override]
        """The head that fits the objective."""
        return "AutoModelForMaskedLM" if self.objective == "masked" else "AutoModelForCausalLM"

    def guess_text(self, found: SplitRows, label: str | None) -> tuple[str, ...]:
        """One column of text."""
        return super().guess_text(found, label)[:1]

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One line of a document, or one document."""
        value = row.values[columns.text[0]]
        if not isinstance(value, str):
            raise DataError(f"{row.at()}: column `{columns.text[0]}` holds `{value}` and no text; mend the row")
        document = row.values.get(DOCUMENT, f"{row.file}:{row.line}")
        return [{"text": value, "document": document}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise documents and cut them into blocks."""
        check_length(processor, max_length)
        masked = self.objective == "masked"
        if masked and processor.mask_token_id is None:
            raise DataError(f"`{type(processor).__name__}` has no mask token; use the objective `causal`")
        blocks = list(_blocks(split, processor, max_length, masked=masked))
        if not blocks:
            raise DataError(f"{split.at(0)}: the text gives fewer than two tokens; give more text")
        inputs = [{"input_ids": block, "attention_mask": np.ones_like(block)} for block in blocks]
        if masked:
            return Features(inputs, transform=TokenMasking.of(processor, seed))
        return Features([{**item, "labels": item["input_ids"]} for item in inputs])

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Likelihood of the tokens; predictions are what `reduce` left of the logits."""
        return likelihood_metrics(predictions, metrics)


def _documents(split: Split) -> Iterator[str]:
    for _, lines in groupby(split, key=lambda example: example["document"]):
        yield "\n".join(line["text"] for line in lines)


def _blocks(
    split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int, *, masked: bool
) -> Iterator[np.ndarray[Any, np.dtype[np.int32]]]:
    """Blocks of tokens; a masked block has its special tokens around it."""
    opening, closing = _around(tokenizer) if masked else ([], [])
    room = max_length - len(opening) - len(closing)
    parting = tokenizer.sep_token_id if masked else tokenizer.eos_token_id
    stream: list[int] = []
    # A document may be longer than the model's context; it is cut here, so the tokenizer's warning would mislead.
    encoded = tokenizer(list(_documents(split)), add_special_tokens=not masked, truncation=False, verbose=False)
    for ids in encoded["input_ids"]:
        stream += ids
        if parting is not None and (not ids or ids[-1] != parting):
            stream.append(parting)
    for begin in range(0, len(stream), room):
        block = stream[begin : begin + room]
        if len(block) > 1:
            yield np.array([*opening, *block, *closing], np.int32)


def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    opening = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    closing = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    return ([] if opening is None else [opening]), ([] if closing is None else [closing])
