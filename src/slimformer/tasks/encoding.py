"""Text to token numbers, without the state that a fast tokenizer keeps between calls.

A fast tokenizer of Transformers remembers how the last caller had texts cut and padded, so two threads that want
different lengths would cut each other's texts. Here a text is encoded whole, by a copy of the tokenizer that nobody
else reaches and that is never changed, and cut afterwards.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.models.processors.backend import encode_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.features import Inputs

#: Inputs of a model → where an encoding has them.
_FIELDS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}

_copies: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], Tokenizer]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class TextEncoder:
    """Tokenises texts; may be used from any number of threads.

    Args:
        tokenizer: The tokenizer, which is not changed.
    """

    tokenizer: PreTrainedTokenizerBase

    def inputs(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int | None = None
    ) -> list[Inputs]:
        """The inputs of texts or pairs; in a pair that is too long, the longer text is cut first."""
        if not self.tokenizer.is_fast:
            return self._slow_inputs(texts, pairs, max_length)
        return [self.as_inputs(encoding) for encoding in self.encodings(texts, pairs, max_length)]

    def encodings(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        pairs: Sequence[str] | None = None,
        max_length: int | None = None,
        *,
        special_tokens: bool = True,
    ) -> list[Encoding]:
        """What a fast tokenizer makes of texts, of lists of words or of pairs: tokens, and where they stand."""
        backend = self._backend()
        split = bool(texts) and not isinstance(texts[0], str)
        first = encode_batch(backend, texts, split=split)
        second = None if pairs is None else encode_batch(backend, pairs)
        if max_length is not None:
            room = max_length - backend.num_special_tokens_to_add(second is not None)
            self._cut(first, second, room)
        if not special_tokens:
            return first
        return [
            backend.post_process(encoding, None if second is None else second[index])
            for index, encoding in enumerate(first)
        ]

    def ids(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[list[int]]:
        """The tokens of whole texts, however long."""
        if not self.tokenizer.is_fast:
            # A text may be longer than the model's context, of which the tokenizer would warn.
            encoded = self.tokenizer(list(texts), add_special_tokens=special_tokens, truncation=False, verbose=False)
            return [list(ids) for ids in encoded["input_ids"]]
        return [encoding.ids for encoding in self.encodings(texts, special_tokens=special_tokens)]

    def windows(
        self, texts: Sequence[str], longs: Sequence[str], max_length: int, overlap: int
    ) -> list[list[Encoding]]:
        """Each text paired with stretches of a longer one that fit; neighbours overlap by so many tokens."""
        backend = self._backend()
        first = encode_batch(backend, texts)
        second = encode_batch(backend, longs)
        room = max_length - backend.num_special_tokens_to_add(True)
        windows = []
        for text, long in zip(first, second, strict=True):
            long.truncate(room - len(text.ids), overlap, self.tokenizer.truncation_side)
            windows.append([backend.post_process(text, stretch) for stretch in (long, *long.overflowing)])
        return windows

    def as_inputs(self, encoding: Encoding) -> Inputs:
        """The arrays of an encoding that the model takes."""
        names = ("input_ids", *(name for name in _FIELDS if name in self.tokenizer.model_input_names))
        return {name: np.asarray(getattr(encoding, _FIELDS[name]), np.int32) for name in dict.fromkeys(names)}

    def _cut(self, first: Sequence[Encoding], second: Sequence[Encoding] | None, room: int) -> None:
        side = self.tokenizer.truncation_side
        if second is None:
            for encoding in first:
                encoding.truncate(room, 0, side)
            return
        for one, other in zip(first, second, strict=True):
            kept, kept_of_pair = longest_first(len(one.ids), len(other.ids), room)
            one.truncate(kept, 0, side)
            other.truncate(kept_of_pair, 0, side)

    def _backend(self) -> Tokenizer:
        """The copy of the tokenizer that encodes; made anew when the tokenizer was changed since."""
        settings = _settings(self.tokenizer)
        with _lock:
            known = _copies.get(self.tokenizer)
            if known is None or known[0] != settings:
                known = _copies[self.tokenizer] = (settings, _copy(self.tokenizer))
        return known[1]

    def _slow_inputs(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int | None) -> list[Inputs]:
        """A tokenizer written in Python keeps no state."""
        encoded = self.tokenizer(
            list(texts),
            None if pairs is None else list(pairs),
            truncation=max_length is not None,
            max_length=max_length,
            verbose=False,
        )
        return [{name: np.asarray(encoded[name][index], np.int32) for name in encoded} for index in range(len(texts))]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens that two texts keep where both together may have so many, as fast tokenizers divide them."""
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = shorter + room % 2
    return (longer, shorter) if first > second else (shorter, longer)


def _settings(tokenizer: Any) -> tuple[Any, ...]:
    """Whatever of a fast tokenizer decides how a whole text is encoded, but the words of its vocabulary."""
    backend = tokenizer.backend_tokenizer
    parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.get_added_tokens_decoder())
    return id(backend), len(tokenizer), _splits_special(tokenizer), *map(repr, parts)


def _splits_special(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "split_special_tokens", False))


def _copy(tokenizer: Any) -> Tokenizer:
    from tokenizers import Tokenizer

    copied = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copied.no_truncation()
    copied.no_padding()
    copied.encode_special_tokens = _splits_special(tokenizer)
    return copied
