"""Words with a tag each: named entities, parts of speech."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slimformer.errors import DataError, describe
from slimformer.models import IGNORED
from slimformer.tasks.columns import TAGS, TOKENS, Columns, guess_one, label_text
from slimformer.tasks.encoding import TextEncoder
from slimformer.tasks.features import Features, PaddingCollator, counted_tokens, padding_collator
from slimformer.tasks.kinds.answers import Snippet, label_of
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.texts import check_length, need_fast
from slimformer.tasks.metrics import tagging_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slimformer.tasks.preset import ReaderName
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class Tagging(Kind):
    """Tagging words; the label of a word sits on its last word piece.

    A word that is cut off by `max_length`, or that the tokenizer drops, gets no tag and counts as wrong.
    """

    name = "tagging"
    head = "AutoModelForTokenClassification"
    snippet = Snippet(
        (
            'tags = [[about["labels"][i] for i in row] for row in outputs["logits"].argmax(-1)]',
            "print([list(zip(each.tokens, row)) for each, row in zip(batch, tags)])",
        )
    )
    pipeline_tag = "token-classification"
    metrics = ("f1", "precision", "recall", "accuracy")
    readers: ClassVar[Mapping[str, ReaderName]] = {".txt": "conll", ".tsv": "conll"}
    fields = ("tokens",)
    request = 'a text, whose words stand between blanks, a list of words, or {"tokens": [words]}'

    def guess_text(self, rows: SplitRows, label: str | None) -> tuple[str, ...]:
        """The column of the words."""
        return (guess_one(rows, TOKENS, "words", "text_column"),)

    def guess_label(self, rows: SplitRows) -> str:
        """The column of the tags."""
        return guess_one(rows, TAGS, "tags")

    def reader_options(self, label: str | None) -> tuple[dict[str, Any], str | None]:
        """A number names the tag's column of a CoNLL file, and a word a column of CoNLL-U."""
        from slimformer.tasks.readers.conll import CONLLU_COLUMNS

        if label is None:
            return {}, None
        if label.lstrip("-").isdecimal():
            return {"tag": int(label)}, None
        if label.lower() in CONLLU_COLUMNS:
            return {"column": label.lower()}, None
        return {}, label

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One sentence."""
        assert columns.label is not None
        tokens, tags = row.values[columns.text[0]], row.values[columns.label]
        for column, values in ((columns.text[0], tokens), (columns.label, tags)):
            if not isinstance(values, list) or not values:
                raise DataError(
                    f"{row.at()}: column `{column}` holds `{describe(values)}`; give a list with an entry for each word"
                )
        if len(tokens) != len(tags):
            raise DataError(f"{row.at()}: {len(tokens)} words but {len(tags)} tags; give every word its tag")
        names = [rename(label_text(tag, row, columns.label)) for tag in tags]
        if self.settings.get("iob1"):
            names = iob2(names)
        for token in tokens:
            if not isinstance(token, str):
                raise DataError(
                    f"{row.at()}: column `{columns.text[0]}` holds `{describe(token)}` where a word is expected; "
                    "mend the row or remove it"
                )
        return [{"tokens": list(tokens), "tags": names}]

    def labels_of(self, example: Example) -> Iterable[Any]:
        """The tags of the sentence."""
        tags: list[Any] = example["tags"]
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
        encoder = TextEncoder(processor)
        encodings = encoder.encodings(_words(encoder, [example["tokens"] for example in split]), None, max_length)
        inputs, extra = [], []
        for example, encoding in zip(split, encodings, strict=True):
            item = encoder.as_inputs(encoding)
            positions = last_pieces(encoding.word_ids, len(example["tokens"]))
            labels = np.full(len(item["input_ids"]), IGNORED, np.int32)
            kept = positions >= 0
            labels[positions[kept]] = np.array(example["tags"])[kept]
            inputs.append({**item, "labels": labels})
            extra.append(positions)
        return Features(inputs, extra)

    def collator(self, processor: Any) -> PaddingCollator:
        """Pads on the right whatever the tokenizer prefers, so that a word keeps its position in the outputs."""
        return padding_collator(processor, side="right")

    def items(self, batch: Arrays) -> int:
        """Words that have a tag."""
        return counted_tokens(batch, shifted=False)

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare the tags of words."""
        names = list(labels or ())
        truth = [[names[tag] for tag in example["tags"]] for example in split]
        return tagging_metrics(truth, _tags(features, predictions, names), metrics)

    def encode(self, request: Any) -> Example:
        """The words of a text, or a list of them."""
        if isinstance(request, Mapping):
            request = request.get("tokens") or request.get("text")
        words = request.split() if isinstance(request, str) else request
        if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) for word in words):
            raise self.unfit(request)
        if not all(word.strip() for word in words):
            raise DataError(f"word {[bool(word.strip()) for word in words].index(False) + 1} of a request is empty")
        return {"tokens": list(words), "tags": [0] * len(words)}

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """A tag for each word; None for one that was cut off."""
        tags = _tags(features, outputs["logits"], labels)
        return [{"tokens": example["tokens"], "tags": each} for example, each in zip(split, tags, strict=True)]

    def line(self, answer: Answer) -> str:
        """Words with their tags."""
        return " ".join(f"{word}/{tag or '?'}" for word, tag in zip(answer["tokens"], answer["tags"], strict=True))


def _tags(features: Features, logits: Any, labels: Sequence[str] | None) -> list[list[str | None]]:
    """The likeliest tag of each word, None for a word without one."""
    best = np.asarray(logits).argmax(-1)  # [sentences, positions]
    return [
        [label_of(labels, row[position]) if position >= 0 else None for position in positions]
        for row, positions in zip(best, features.extra, strict=True)
    ]


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


def _words(encoder: TextEncoder, sentences: list[list[str]]) -> list[list[str]]:
    """Words as the tokenizer wants them: some, such as RoBERTa's, take a word in a sentence to begin with a blank."""
    if not _wants_blanks(encoder):
        return sentences
    return [[tokens[0], *(f" {token}" for token in tokens[1:])] for tokens in sentences]


def _wants_blanks(encoder: TextEncoder) -> bool:
    """Whether a word in a sentence begins with a blank to this tokenizer (GPT-2, RoBERTa), and it adds none itself."""
    (running,) = encoder.encodings(["a b"], special_tokens=False)
    split, blank = encoder.encodings([["a", "b"], ["a", " b"]], special_tokens=False)
    return bool(split.ids != running.ids and blank.ids == running.ids)
