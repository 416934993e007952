"""Entities of texts, as `pipeline("token-classification")` of Transformers gives them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ConfigError, describe
from slimformer.runtime.answering.labels import softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slimformer.runtime.answering.texts import TextReader
    from slimformer.runtime.onnx import Array

#: Ways in which the scores of the tokens of a word become those of the word.
WORDS: dict[str, Callable[[Array], Array]] = {
    "first": lambda shares: shares[0],
    "max": lambda shares: shares[int(shares.max(axis=1).argmax())],
    "average": lambda shares: shares.mean(axis=0),
}
#: Ways of grouping tokens.
STRATEGIES = ("none", "simple", *WORDS)


class Tagger:
    """From the logits of tokens to entities.

    Args:
        reader: Gave the tokens.
        labels: The labels of the model.
        strategy: A name of `STRATEGIES`; upper case and enums of Transformers will do.
        ignored: Labels that are not told.
    """

    def __init__(self, reader: TextReader, labels: list[str], strategy: Any, ignored: Sequence[str]) -> None:
        self.reader = reader
        self.labels = labels
        self.strategy = str(getattr(strategy, "value", strategy)).lower()
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"`aggregation_strategy` is `{describe(strategy)}`; give one of: {', '.join(STRATEGIES)}")
        if isinstance(ignored, str) or not all(isinstance(label, str) for label in ignored):
            raise ConfigError(f"`ignore_labels` is `{describe(ignored)}`; give a list of labels")
        self.ignored = ignored
        self._prefixed = bool(getattr(reader.tokenizer.model, "continuing_subword_prefix", None))

    def entities(self, text: str, read: Any, logits: Array) -> list[dict[str, Any]]:
        """The entities of a text, of whose tokens there are logits, [tokens, labels]."""
        shares = softmax(logits)
        places = [place for place, special in enumerate(read.special_tokens_mask) if not special]
        if self.strategy in WORDS:
            groups = self._words(text, read, places)
            tagged = [self._word(text, read, group, WORDS[self.strategy](shares[group])) for group in groups]
        else:
            tagged = [self._token(text, read, place, shares[place]) for place in places]
        if self.strategy != "none":
            tagged = self._grouped(tagged)
        key = "entity" if self.strategy == "none" else "entity_group"
        return [each for each in tagged if each[key] not in self.ignored]

    def _token(self, text: str, read: Any, place: int, shares: Array) -> dict[str, Any]:
        start, end = read.offsets[place]
        label = int(shares.argmax())
        scored = {"entity": self.labels[label], "score": float(shares[label])}
        return {**scored, "index": place, "word": self._piece(text, read, place), "start": start, "end": end}

    def _piece(self, text: str, read: Any, place: int) -> str:
        """A token by its name; one that the vocabulary lacks as it stands in the text."""
        start, end = read.offsets[place]
        return text[start:end] if read.ids[place] == self.reader.unknown else str(read.tokens[place])

    def _word(self, text: str, read: Any, places: list[int], shares: Array) -> dict[str, Any]:
        label = int(shares.argmax())
        ends = {"start": read.offsets[places[0]][0], "end": read.offsets[places[-1]][1]}
        word = self._joined([self._piece(text, read, place) for place in places])
        return {"entity": self.labels[label], "score": float(shares[label]), "word": word, **ends}

    def _words(self, text: str, read: Any, places: list[int]) -> list[list[int]]:
        """Places of tokens, word by word."""
        words: list[list[int]] = []
        for place in places:
            if words and self._continues(text, read, place):
                words[-1].append(place)
            else:
                words.append([place])
        return words

    def _continues(self, text: str, read: Any, place: int) -> bool:
        """Whether a token goes on with the word before it, as Transformers sees it."""
        start, end = read.offsets[place]
        if read.ids[place] == self.reader.unknown:
            return False
        if self._prefixed:
            return bool(len(read.tokens[place]) != end - start)
        return bool(start > 0 and " " not in text[start - 1 : start + 1])

    def _grouped(self, tagged: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Neighbours of one label as one entity; one whose label begins with `B-` begins a new entity."""
        starts = [0, *(at for at, pair in enumerate(pairwise(tagged), start=1) if not _goes_on(*pair)), len(tagged)]
        return [self._group(tagged[first:last]) for first, last in pairwise(starts) if first < last]

    def _group(self, tagged: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "entity_group": tagged[0]["entity"].split("-", 1)[-1],
            "score": float(np.mean([each["score"] for each in tagged])),
            "word": self._joined([each["word"] for each in tagged]),
            "start": tagged[0]["start"],
            "end": tagged[-1]["end"],
        }

    def _joined(self, tokens: list[str]) -> str:
        decoder = self.reader.tokenizer.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))


def _goes_on(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a token belongs to the entity of the one before it."""
    kind, label = _parts(other["entity"])
    return kind != "B" and label == _parts(one["entity"])[1]


def _parts(label: str) -> tuple[str, str]:
    """Whether a label begins an entity, and what kind of one."""
    return (label[0], label[2:]) if label.startswith(("B-", "I-")) else ("I", label)
