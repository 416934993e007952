"""Documents to token numbers, in batches, with the fast core of a tokenizer."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transformers import PreTrainedTokenizerBase

#: Characters that are tokenised in one call; more would only take more memory, about 80 bytes for each.
BATCH = 2**18


class Encoder:
    """A tokenizer's core, apart from the tokenizer.

    A tokenizer keeps the padding and truncation of its last call; a copy of the core has neither, whoever else uses
    the tokenizer, and does not spend time on masks and offsets that nobody reads.

    Args:
        tokenizer: A fast tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            raise DataError(
                f"`{type(tokenizer).__name__}` is not a fast tokenizer, which a corpus needs; "
                "use a checkpoint with tokenizer.json"
            )
        original: Any = tokenizer.backend_tokenizer
        self._core: Any = Tokenizer.from_str(original.to_str())
        self._core.no_padding()
        self._core.no_truncation()
        self._core.encode_special_tokens = original.encode_special_tokens
        separators = (tokenizer.sep_token_id, tokenizer.eos_token_id)
        #: What stands between two documents: the separator of an encoder, the end token of a decoder.
        self.separator: int | None = next((each for each in separators if isinstance(each, int)), None)
        self.opening, self.closing = self._around(next(iter(tokenizer.all_special_tokens), "a"))

    def encode(self, documents: Iterable[str]) -> Iterator[tuple[list[int], bool]]:
        """Token numbers without special tokens, and whether a document ends with them.

        A document of more than `BATCH` characters comes in several parts, cut at blanks.
        """
        texts: list[str] = []
        ends: list[bool] = []
        size = 0
        for document in documents:
            for text, last in _parts(document):
                texts.append(text)
                ends.append(last)
                size += len(text)
                if size >= BATCH:
                    yield from zip(self._ids(texts), ends, strict=True)
                    texts, ends, size = [], [], 0
        yield from zip(self._ids(texts), ends, strict=True)

    def digest(self) -> str:
        """A hash of everything that decides which tokens a text becomes."""
        state = (json.loads(self._core.to_str()), self._core.encode_special_tokens, self.separator)
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def _ids(self, texts: list[str]) -> Iterator[list[int]]:
        for encoding in self._core.encode_batch_fast(texts, add_special_tokens=False):
            yield encoding.ids

    def _around(self, probe: str) -> tuple[list[int], list[int]]:
        """The special tokens the tokenizer's own post-processor puts before and after a text."""
        encoding = self._core.encode(probe)
        inside = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
        return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]


def _parts(document: str) -> Iterator[tuple[str, bool]]:
    """A document in parts of at most `BATCH` characters, and which part is the last."""
    start = 0
    while len(document) - start > BATCH:
        blank = document.rfind(" ", start + 1, start + BATCH)
        stop = blank if blank > 0 else start + BATCH
        yield document[start:stop], False
        start = stop
    yield document[start:], True
