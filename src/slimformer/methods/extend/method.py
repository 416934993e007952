"""Extending a model's vocabulary for a domain."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from slimformer import models
from slimformer.errors import CheckpointError, DataError
from slimformer.inference.door import look_up, open_model
from slimformer.methods.extend.config import ExtendConfig
from slimformer.methods.method import Method
from slimformer.methods.output import RunResult
from slimformer.train import Trained

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer import artifact
    from slimformer.corpus import Corpus
    from slimformer.inference.source import Source
    from slimformer.methods.extend.choosing import NewPiece
    from slimformer.models.settings import Store


@dataclass(frozen=True)
class ExtendResult(RunResult):
    """What extending made; its metrics compare the tokenizers on held-out text, and tell pieces and bytes."""

    def lines(self) -> list[str]:
        """The result as a person reads it."""
        report = self.metrics
        before, after = report["bytes_before"] / 2**20, report["bytes"] / 2**20
        return [
            f"{report['pieces']:,.0f} word pieces instead of {report['pieces_before']:,.0f}: "
            f"{after:.1f} MiB instead of {before:.1f} MiB",
            f"{report['tokens_per_word']:.3f} tokens a word of held-out text instead of "
            f"{report['tokens_per_word_before']:.3f}; {100 * report['texts_same']:.2f} % of its texts stay as they are",
            f"saved in {self.folder}",
        ]


class Extend(Method[ExtendConfig]):
    """Give a model the word pieces that a domain needs most, in the embedding and the tokenizer together.

    Nothing is trained: a new row is the mean of the rows of its old parts. Pieces are chosen on the part of the corpus
    that is not held out. Text in which no new piece ends up is split into the same pieces and gets the same outputs.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `ExtendConfig` and of `RunOptions` (overwrite, quiet, command).

    Example:
        >>> result = extend(model="minilm", corpus=["papers.txt"], new_tokens=500, out="minilm-words")
        >>> result.metrics["tokens_per_word_before"], result.metrics["tokens_per_word"]
    """

    name = "extend"
    trains = False
    config_class = ExtendConfig
    learns_from = "corpus"
    required = ("model", "corpus", "new_tokens", "out")

    source: Source
    held_out: Corpus
    #: The new pieces, the most useful first.
    pieces: list[NewPiece]

    @property
    def base(self) -> str:
        """The model that is extended."""
        return cast("str", self.config.model)

    def start(self) -> str:
        """Read the model and choose pieces, since only then it is known whether there are enough."""
        from slimformer.methods.extend.choosing import choose_new_pieces

        config = self.config
        self.source = look_up(self.base)
        self.source.require(self.accepts)
        check_extendable(self.source)
        assert config.corpus is not None
        assert config.new_tokens is not None
        corpus = config.open_texts()
        self.held_out = corpus.part(held_out=True)
        if not any(self.held_out.first_documents(1)):
            raise DataError(
                "the corpus has too few different documents to hold some out and measure on; give more of them"
            )
        opened = open_model(self.source, dtype="stored")
        self.model, self.processor = opened.model, opened.processor
        documents = corpus.part(held_out=False).documents()
        self.pieces = choose_new_pieces(self.processor, documents, config.new_tokens)
        self._check_number()
        return corpus.digest()

    def _check_number(self) -> None:
        """Refuse more pieces than the corpus has a use for."""
        count, known = self.config.new_tokens, len(self.pieces)
        if not known:
            raise DataError(
                f"`new_tokens` is {count}, and the tokenizer has a piece for every word that the corpus repeats; leave "
                "the vocabulary as it is, or give more text"
            )
        if known != count:
            raise DataError(
                f"`new_tokens` is {count}, and {known} new pieces are of use to the corpus; give {known} or less, or "
                "more text"
            )

    def train(self, folder: Path) -> Trained:
        """Put the pieces into tokenizer and model; there is nothing to learn."""
        from slimformer.artifact.provenance import stored_tensors
        from slimformer.artifact.storage.precision import bytes_as
        from slimformer.methods.extend.extending import compare_extended, extend_model, extend_tokenizer

        start = time.monotonic()
        extended = extend_tokenizer(self.processor, self.pieces)
        texts = compare_extended(self.processor, extended, self.held_out.documents())
        pieces, weights = len(self.processor), bytes_as(stored_tensors(self.model), self.source.store)
        extend_model(self.model, self.pieces)
        self.measured = {
            "tokens_per_word_before": texts.per_word_before,
            "tokens_per_word": texts.per_word_after,
            "texts_same": texts.texts_same / max(1, texts.texts),
            "pieces_before": float(pieces),
            "pieces": float(len(extended)),
            "bytes_before": float(weights),
            "bytes": float(bytes_as(stored_tensors(self.model), self.store)),
        }
        self.processor = extended
        return Trained([], 0, 0, time.monotonic() - start)

    def finish(self) -> None:
        """Nothing is left to be done."""

    @property
    def store_unasked(self) -> Store | None:
        """As the base is stored."""
        return self.source.store

    def measure(self, trained: Trained) -> dict[str, float]:
        """What the larger vocabulary does to held-out text."""
        return self.measured

    def describe(self, metrics: dict[str, float]) -> dict[str, Any]:
        """The report, and the task the model was made for before."""
        return {"metrics": {"corpus": metrics}, "task": self.source.task}

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> ExtendResult:
        """What the caller gets."""
        return ExtendResult(**vars(super().result(folder, metrics, trained)))

    def reload(self, done: artifact.Loaded, folder: Path) -> ExtendResult:
        """The result of a run that had ended before."""
        return ExtendResult(done.model, done.processor, folder, dict(done.manifest.metrics["corpus"]))


def check_extendable(source: Source) -> None:
    """Refuse a model that reads no text, or whose tokenizer takes no new pieces, before any weight is read.

    Args:
        source: The model.
    """
    from slimformer.methods.extend.kinds import open_splitting

    if models.sees_images(source.config):
        raise CheckpointError(f"`{source.name}` sees images and has no word pieces; give a text model")
    open_splitting(models.load_processor(source.name))
