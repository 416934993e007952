"""What an exported file says of itself: kind of task, labels, how texts are cut and pooled, and which tokenizer."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.artifact.provenance import count
from slimformer.artifact.storage.onnx import OnnxRecord, SentenceRecord
from slimformer.artifact.storage.plain import save_processor
from slimformer.errors import CheckpointError
from slimformer.inference.codec import TaskCodec, longest
from slimformer.inference.pipeline import codec_for, kind_for
from slimformer.models.processors.identity import processor_sum
from slimformer.models.sentence import SentenceSettings
from slimformer.tasks.kinds import kind_of_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.inference.source import Source
    from slimformer.tasks.kinds.kind import Kind

#: Tokens beyond which a text is not cut at all: what tokenizers without a limit give as theirs has thirty digits.
MOST_TOKENS = 1 << 20


@dataclass(frozen=True)
class Exported:
    """A model that is exported, with what is known of it.

    Args:
        model: The model.
        source: What it was opened from; None for a model that was given in memory.
        processor: Its tokenizer or image processor; None where there is none.
    """

    model: PreTrainedModel
    source: Source | None = None
    processor: Any = None

    @property
    def kind(self) -> Kind | None:
        """What the model has to do, as far as its artifact, or its class and config, tell."""
        config = self.model.config
        if self.source is not None:
            try:
                return kind_for(self.source)
            except CheckpointError:
                return None
        kind = kind_of_model(type(self.model).__name__, config)
        return None if kind is None else kind.for_model(causal=models.is_causal(config))

    def codec(self, kind: Kind) -> TaskCodec:
        """How it is asked."""
        if self.source is not None:
            return codec_for(self.source, kind, self.processor)
        config = self.model.config
        labels = [str(name) for _, name in sorted((config.id2label or {}).items())] if kind.labelled else None
        return TaskCodec(kind, self.processor, longest(kind, config, self.processor, None), labels)

    def sentence(self) -> SentenceSettings | None:
        """How its outputs become one vector, where its folder says so."""
        return None if self.source is None else self.source.sentence()

    def record(self, numbers: str, processor: str | None) -> OnnxRecord:
        """What the file says of itself.

        Args:
            numbers: What its matrices are stored in.
            processor: Sum of the tokenizer or image processor.
        """
        kind, config = self.kind, self.model.config
        codec = None if kind is None else self.codec(kind)
        labels = None if codec is None or codec.labels is None else list(codec.labels)
        texts = codec is not None and codec.kind.modality == "texts"
        sentence = (self.sentence() or SentenceSettings()) if kind is not None and kind.embeds else None
        pads = (getattr(self.processor, "pad_token_id", None), getattr(config, "pad_token_id", None), 0)
        task = None if self.source is None else self.source.task
        architecture = type(self.model).__name__
        return OnnxRecord(
            architecture=architecture,
            kind=None if kind is None else kind.name,
            labels=labels,
            columns=[] if codec is None else list(codec.columns),
            max_length=min(codec.max_length, MOST_TOKENS) if codec is not None and texts else None,
            positions=models.positions(config),
            vocabulary_size=getattr(config.get_text_config(), "vocab_size", None),
            pad_token_id=next(pad for pad in pads if pad is not None and pad >= 0),
            sentence=None if sentence is None else SentenceRecord.of(sentence),
            prompt="" if sentence is None else sentence.prompt,
            numbers=numbers,
            parameters=count(self.model),
            processor_sha256=processor,
            task=None if task is None else task.model_copy(update={"labels": None}),
            settings=OnnxRecord.settings_of(config, architecture, labels),
        )

    def processor_sum(self) -> str | None:
        """The sum of its tokenizer or image processor: of the files it came from, or of those it would be saved in."""
        if self.processor is None:
            return None
        folder = None if self.source is None else Path(models.resolve(self.source.name))
        beside = processor_sum(folder) if folder is not None and folder.is_dir() else None
        if beside is not None:
            return beside
        with tempfile.TemporaryDirectory() as written:
            save_processor(Path(written), self.processor)
            return processor_sum(Path(written))
