"""Words with a tag each: named entities, parts of speech."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.collators import IGNORED, PaddingCollator, padding_collator
from slimformer.tasks.columns import TAGS, TOKENS, Columns, guess_one
from slimformer.tasks.features import Features, as_arrays
from slimformer.tasks.kinds.kind import Kind, Rename, check_length, need_fast
from slimformer.tasks.labels import label_text
from slimformer.tasks.metrics.tagging import tagging_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class Tagging(Kind):
    """Tagging words; the label of a word sits on its last word piece.

    A word that is cut off by `max_length`, or that the tokenizer drops, gets no tag and counts as wrong.
    """

    name = "tagging"
    head = "AutoModelForTokenClassification"
    metrics = ("f1", "precision", "recall", "accuracy")

    def guess_text(self, found: SplitRows, label: str | None) -> tuple[str, ...]:
        """The column of the words."""
        return (guess_one(found, TOKENS, "words", "text_column"),)

    def guess_label(self, found: SplitRows) -> str:
        """The column of the tags."""
        return guess_one(found, TAGS, "tags")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One sentence."""
        assert columns.label is not None
        tokens, tags = row.values[columns.text[0]], row.values[columns.label]
        for column, values in ((columns.text[0], tokens), (columns.label, tags)):
            if not isinstance(values, list) or not values:
                raise DataError(
                    f"{row.at()}: column `{column}` holds `{values}`; give a list with an entry for each word"
                )
        if len(tokens) != len(tags):
            raise DataError(f"{row.at()}: {len(tokens)} words but {len(tags)} tags; give every word its tag")
        names = [rename(label_text(tag, row, columns.label)) for tag in tags]
        if self.settings.get("iob1"):
            names = iob2(names)
        return [{"tokens": [str(token) for token in tokens], "tags": names}]

    def labels_of(self, example: Example) -> Iterable[str]:
        """The tags of the sentence."""
        tags: list[str] = example["tags"]
        return tags

    def with_ids(self, example: Example, ids: Mapping[str, int]) -> Example:
        """The sentence with tags as numbers."""
        return {**example, "tags": [ids[tag] for tag in example["tags"]]}

    def metric_names(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        """Entity F1 first for tags such as `B-PER`, word accuracy alone for others."""
        entities = any(label.startswith(("B-", "I-")) for label in labels or ())
        return self.metrics if entities else ("accuracy",)

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise sentences; `extra` holds the position of each word's last piece, -1 for none."""
        need_fast(processor, "tagging")
        check_length(processor, max_length)
        encoded = _encode(processor, [example["tokens"] for example in split], max_length)
        inputs, extra = [], []
        for index, example in enumerate(split):
            item = as_arrays({name: encoded[name][index] for name in encoded})
            positions = last_pieces(encoded.word_ids(index), len(example["tokens"]))
            labels = np.full(len(item["input_ids"]), IGNORED, np.int32)
            kept = positions >= 0
            labels[positions[kept]] = np.array(example["tags"])[kept]
            inputs.append({**item, "labels": labels})
            extra.append(positions)
        return Features(inputs, extra)

    def collator(self, processor: Any) -> PaddingCollator:
        """Pads on the right whatever the tokenizer prefers, so that a word keeps its position in the outputs."""
        return padding_collator(processor, side="right")

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare the tags of words."""
        names = list(labels or ())
        best = np.asarray(predictions).argmax(-1)  # [sentences, positions]
        truth = [[names[tag] for tag in example["tags"]] for example in split]
        predicted = [
            [names[row[position]] if position >= 0 else None for position in positions]
            for row, positions in zip(best, features.extra, strict=True)
        ]
        return tagging_metrics(truth, predicted, metrics)


def last_pieces(word_ids: Sequence[int | None], words: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Position of the last piece of each word, -1 for a word without pieces."""
    positions = np.full(words, -1, np.int64)
    for position, word in enumerate(word_ids):
        if word is not None:
            positions[word] = position
    return positions


def iob2(tags: Sequence[str]) -> list[str]:
    """Tags in the older IOB1 scheme, where `B-` only parts neighbours of one type, as IOB2."""
    result = []
    before = "O"
    for tag in tags:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        result.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return result


def _encode(tokenizer: PreTrainedTokenizerBase, sentences: list[list[str]], max_length: int) -> Any:
    if _wants_blanks(tokenizer):
        sentences = [[tokens[0], *(f" {token}" for token in tokens[1:])] for tokens in sentences]
    return tokenizer(sentences, is_split_into_words=True, truncation=True, max_length=max_length)


def _wants_blanks(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a word in a sentence begins with a blank to this tokenizer (GPT-2, RoBERTa), and it adds none itself."""
    running = tokenizer("a b", add_special_tokens=False)["input_ids"]
    split, blank = (
        tokenizer(["a", second], is_split_into_words=True, add_special_tokens=False)["input_ids"]
        for second in ("b", " b")
    )
    return bool(split != running and blank == running)
