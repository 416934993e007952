"""Trimming a model's vocabulary to a domain."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from slimformer import models
from slimformer.errors import CheckpointError
from slimformer.inference.door import look_up, open_model
from slimformer.methods.method import Method, Showcase
from slimformer.methods.output import RunResult
from slimformer.methods.trim.config import TrimConfig
from slimformer.train import Trained

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer import artifact
    from slimformer.corpus import Corpus
    from slimformer.inference.source import Source
    from slimformer.methods.trim.pieces import TrimReport
    from slimformer.models.settings import Store


@dataclass(frozen=True)
class TrimResult(RunResult):
    """What trimming made; its metrics are those of `TrimReport`."""

    def lines(self) -> list[str]:
        """The result as a person reads it."""
        report = self.metrics
        before, after = report["bytes_before"] / 2**20, report["bytes_after"] / 2**20
        return [
            f"{report['pieces_after']:,.0f} of {report['pieces_before']:,.0f} word pieces kept: "
            f"{after:.1f} MiB instead of {before:.1f} MiB",
            f"{100 * report['coverage']:.3f} % of the corpus's tokens and {100 * report['texts_same']:.2f} % of its "
            f"texts stay as they were; {100 * report['unknown']:.4f} % of the tokens are unknown now",
            f"saved in {self.folder}",
        ]


class Trim(Method[TrimConfig]):
    """Drop the word pieces that a domain does not use, from the embedding and the tokenizer together.

    Nothing is trained: text whose pieces are all kept is split into the same pieces and gets the same outputs.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `TrimConfig` and of `RunOptions` (overwrite, quiet, command).

    Example:
        >>> result = trim(model="sentiment", corpus=["reviews.txt"], out="sentiment-trimmed")
        >>> result.metrics["pieces_after"], result.metrics["coverage"]
    """

    name = "trim"
    trains = False
    config_class = TrimConfig
    learns_from = "corpus"
    required = ("model", "corpus", "out")
    showcase = Showcase("MiniLM, fine-tuned, trimmed", start_from="finetune")

    source: Source
    corpus: Corpus
    report: TrimReport

    @property
    def base(self) -> str:
        """The model that is trimmed."""
        return cast("str", self.config.model)

    def start(self) -> str:
        """Read the model and open the corpus."""
        config = self.config
        self.source = look_up(self.base)
        self.source.require(self.accepts)
        if models.sees_images(self.source.config):
            raise CheckpointError(f"`{self.base}` sees images and has no word pieces to trim; give a text model")
        assert config.corpus is not None
        self.corpus = config.open_texts()
        opened = open_model(self.source, dtype="stored")
        self.model, self.processor = opened.model, opened.processor
        return self.corpus.digest()

    def resolved(self) -> dict[str, Any]:
        """The share of tokens to keep, where no number of pieces is given."""
        return {**super().resolved(), "coverage": self.config.share}

    def train(self, folder: Path) -> Trained:
        """Count, choose and cut; there is nothing to learn."""
        start = time.monotonic()
        self.report = self._trim()
        return Trained([], 0, 0, time.monotonic() - start)

    def finish(self) -> None:
        """Nothing is left to be done."""

    @property
    def store_unasked(self) -> Store | None:
        """As the base is stored."""
        return self.source.store

    def measure(self, trained: Trained) -> dict[str, float]:
        """What the smaller vocabulary does to the corpus."""
        return {name: float(value) for name, value in self.report.summary().items()}

    def describe(self, metrics: dict[str, float]) -> dict[str, Any]:
        """The report, and the task the model was made for before."""
        return {"metrics": {"corpus": metrics}, "task": self.source.task}

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> TrimResult:
        """What the caller gets."""
        return TrimResult(**vars(super().result(folder, metrics, trained)))

    def reload(self, done: artifact.Loaded, folder: Path) -> TrimResult:
        """The result of a run that had ended before."""
        return TrimResult(done.model, done.processor, folder, dict(done.manifest.metrics["corpus"]))

    def _trim(self) -> TrimReport:
        from slimformer.artifact.provenance import stored_tensors
        from slimformer.artifact.storage.precision import bytes_as
        from slimformer.methods.trim.model import domain_pieces, trim_model
        from slimformer.methods.trim.pieces import TrimReport, compare_tokenizers
        from slimformer.methods.trim.tokenizer import trim_tokenizer

        config, tokenizer = self.config, self.processor
        kept: dict[str, Any] = {"keep": config.keep, "coverage": config.share, "always": config.always}
        numbers, _ = domain_pieces(self.model, tokenizer, self.corpus.documents(), **kept)
        trimmed = trim_tokenizer(tokenizer, numbers)
        texts = compare_tokenizers(tokenizer, trimmed, numbers, self.corpus.documents())
        rows = self.model.config.vocab_size
        weights = bytes_as(stored_tensors(self.model), self.source.store)
        trim_model(self.model, numbers)
        self.processor = trimmed
        return TrimReport.of(texts, (rows, len(numbers)), (weights, bytes_as(stored_tensors(self.model), self.store)))
