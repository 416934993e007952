"""Language modelling on a corpus of any size: training examples from a stream, dev from documents held out of it."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, ClassVar

from slimformer.corpus import Corpus, open_corpus
from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.features import Features
from slimformer.tasks.masking import TokenMasking
from slimformer.tasks.splits import Split
from slimformer.tasks.task import TaskData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slimformer.corpus import Stream
    from slimformer.corpus.options import CorpusOptions
    from slimformer.corpus.source import OnFault
    from slimformer.tasks.features import Inputs

#: The task that a corpus is learned by.
TASK = "language-modelling"
#: One document in so many is held out of a corpus, and of one with fewer bytes than that.
HELD_OUT, SMALL_HELD_OUT, SMALL = 100, 10, 2**22
#: Characters of the documents that a model is measured on, and that a tokenizer is learned from, at most.
DEV_CHARACTERS, TRAIN_CHARACTERS = 2**19, 2**26


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
        examples, size = [], 0
        for number, document in enumerate(self.documents(), 1):
            if size >= characters:
                break
            examples.append({"text": document, "document": str(number)})
            size += len(document)
        return Split(examples, [("corpus", number) for number in range(1, len(examples) + 1)])


class StreamedFeatures(Features):
    """The first examples of a stream, with what is predicted of them.

    Args:
        stream: The stream.
        count: How many.
        identity: What tells them from others.
        masking: How tokens are masked; None to predict the next one.
    """

    #: Tells trainers that the order is not theirs to change.
    shuffled: ClassVar[bool] = True

    def __init__(self, stream: Stream, count: int, identity: bytes, masking: TokenMasking | None) -> None:
        # Numbers go on over the passes, so a text is masked otherwise each time.
        super().__init__(stream.first(count), transform=_next_token if masking is None else masking)
        self.identity = identity

    @property
    def lengths(self) -> list[int]:
        """None are known: a stream is not read before its time."""
        return []


def open_parts(options: CorpusOptions, *, causal: bool) -> TaskData:
    """The task of a corpus: as train, what a tokenizer may learn from; as dev, documents held out."""
    assert options.corpus is not None
    corpus = open_corpus(options.corpus, text_column=options.text_column, documents=options.documents)
    splits = {
        "train": Part(corpus, held_out=False).first(TRAIN_CHARACTERS),
        "dev": Part(corpus, held_out=True).first(DEV_CHARACTERS),
    }
    for split, examples in splits.items():
        if not examples:
            raise DataError(
                f"the corpus has too few different documents to hold some out for dev: {split} is empty; give more of "
                f"them, or `--task {TASK}` and `--data` with a file for each split"
            )
    task = get_task(TASK)
    return TaskData(task.preset, task.kind().for_model(causal=causal), splits)


def stream_features(config: Any, data: TaskData, tokenizer: Any, length: int) -> StreamedFeatures:
    """All training examples of a run: those of its steps, or of its passes over the corpus."""
    corpus = open_corpus(config.corpus, text_column=config.text_column, documents=config.documents)
    stream = Part(corpus, held_out=False).stream(tokenizer, length, seed=config.seed)
    steps = config.max_steps or math.ceil(config.epochs * stream.epoch_size() / config.batch_size)
    identity = f"{corpus.digest()} {length} {config.documents}".encode() + tokenizer.backend_tokenizer.to_str().encode()
    masking = None if data.kind.settings["objective"] == "causal" else TokenMasking.of(tokenizer, config.seed)
    return StreamedFeatures(stream, steps * config.batch_size, identity, masking)


def _next_token(inputs: Inputs, index: int, epoch: int) -> Inputs:
    return {**inputs, "labels": inputs["input_ids"]}
