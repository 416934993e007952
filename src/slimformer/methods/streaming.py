"""Language modelling on a corpus of any size: training examples from a stream, dev from documents held out of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.features import Features
from slimformer.tasks.masking import TokenMasking
from slimformer.tasks.task import TaskData

if TYPE_CHECKING:
    from slimformer.corpus import Stream
    from slimformer.corpus.options import CorpusOptions
    from slimformer.corpus.tokens.building import Progress
    from slimformer.tasks.features import Inputs

#: The task that a corpus is learned by.
TASK = "language-modelling"
#: Characters of the documents that a model is measured on, and that a tokenizer is learned from, at most.
DEV_CHARACTERS, TRAIN_CHARACTERS = 2**19, 2**26


class StreamedFeatures(Features):
    """The first examples of a stream, with what is predicted of them.

    Args:
        stream: The stream.
        count: How many.
        identity: What tells them from others.
        masking: How tokens are masked; None to predict the next one.
        shares: The part of the examples that comes from each of several corpora.
    """

    #: Tells trainers that the order is not theirs to change.
    shuffled: ClassVar[bool] = True

    def __init__(
        self,
        stream: Stream,
        count: int,
        identity: bytes,
        masking: TokenMasking | None,
        shares: list[float] | None = None,
    ) -> None:
        # Numbers go on over the passes, so a text is masked otherwise each time.
        super().__init__(stream.first(count), transform=_next_token if masking is None else masking)
        self.identity = identity
        self.shares = shares

    @property
    def lengths(self) -> list[int]:
        """None are known: a stream is not read before its time."""
        return []


def open_parts(options: CorpusOptions, *, causal: bool) -> TaskData:
    """The task of a corpus: as train, what a tokenizer may learn from; as dev, documents held out."""
    assert options.corpus is not None
    corpus = options.open_texts()
    splits = {
        "train": corpus.part(held_out=False).first(TRAIN_CHARACTERS),
        "dev": corpus.part(held_out=True).first(DEV_CHARACTERS),
    }
    for split, examples in splits.items():
        if not examples:
            raise DataError(
                f"the corpus has too few different documents to hold some out for dev: {split} is empty; give more of "
                f"them, or `--task {TASK}` and `--data` with a file for each split"
            )
    task = get_task(TASK)
    return TaskData(task.preset, task.kind().for_model(causal=causal), splits)


def stream_features(
    config: Any, data: TaskData, tokenizer: Any, length: int, progress: Progress | None = None
) -> StreamedFeatures:
    """All training examples of a run: those of its steps, or of its passes over the corpus."""
    corpus = config.open_texts()
    part = corpus.part(held_out=False)
    stream = part.stream(tokenizer, length, seed=config.seed, **config.token_settings(part, progress))
    # Counted, since no folder notes an estimate for a run that goes on with tokens kept otherwise.
    steps = config.max_steps or math.ceil(config.epochs * stream.epoch_size() / config.batch_size)
    identity = f"{corpus.digest()} {length} {config.documents}".encode() + tokenizer.backend_tokenizer.to_str().encode()
    masking = None if data.kind.settings["objective"] == "causal" else TokenMasking.of(tokenizer, config.seed)
    return StreamedFeatures(stream, steps * config.batch_size, identity, masking, corpus.shares)


def _next_token(inputs: Inputs, index: int, epoch: int) -> Inputs:
    return {**inputs, "labels": inputs["input_ids"]}
