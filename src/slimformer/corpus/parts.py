"""A corpus divided into what is learned from and what is held out to measure with."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from slimformer.corpus.corpus import Corpus
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slimformer.corpus.source import OnFault

#: One document in so many is held out of a corpus, and of one with fewer bytes than that.
HELD_OUT, SMALL_HELD_OUT, SMALL = 100, 10, 2**22


class Part(Corpus):
    """The documents of a corpus that are learned from, or those that are held out.

    Which they are follows from their text alone, so that a copy of a document in another file goes with it.

    Args:
        corpus: The corpus.
        held_out: Which part.
    """

    def __init__(self, corpus: Corpus, *, held_out: bool) -> None:
        super().__init__(corpus.sources)
        self.held_out = held_out
        self._one_in = HELD_OUT if self.sizes.sum() >= SMALL else SMALL_HELD_OUT

    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The documents of one segment that belong to the part."""
        for document in super().read(segment, on_fault):
            number = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big")
            if (number % self._one_in == 0) == self.held_out:
                yield document

    def first(self, characters: int) -> Split:
        """The first documents, up to so many characters, as examples of language modelling."""
        examples = [
            {"text": document, "document": str(number)}
            for number, document in enumerate(first_documents(self, characters), 1)
        ]
        return Split(examples, [("corpus", number) for number in range(1, len(examples) + 1)])


def first_documents(corpus: Corpus, characters: int) -> Iterator[str]:
    """The first documents of a corpus, up to so many characters."""
    size = 0
    for document in corpus.documents():
        if size >= characters:
            return
        yield document
        size += len(document)
