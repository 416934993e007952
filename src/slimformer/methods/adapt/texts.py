"""Texts of a domain: the model with the head of a language model, examples with masks, and what is held out."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.corpus import open_corpus
from slimformer.corpus.masked import MaskedExamples, masked_collator
from slimformer.corpus.order.grouping import GroupedStream
from slimformer.errors import CheckpointError, ConfigError, DataError
from slimformer.inference.evaluation import head_classes
from slimformer.methods.corpus import check_same_tokens, example_length
from slimformer.models.sentence import SentenceSettings
from slimformer.objectives import TermSpec
from slimformer.tasks import get_task
from slimformer.tasks.features import TensorCollator, padding_collator
from slimformer.tasks.masking import TokenMasking

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer.corpus import Corpus, Examples, Stream
    from slimformer.corpus.tokens.building import Progress
    from slimformer.inference.source import Source
    from slimformer.methods.adapt.config import AdaptConfig
    from slimformer.tasks.features import Collator, Inputs
    from slimformer.tasks.masking import WordDeletion

#: The part of the tokens that is hidden unless given.
SHARE = 0.15
#: Characters of held-out text that a model is measured on at most; its masks are the same whatever the run's seed is.
MEASURED, MEASURED_SEED = 2**18, 0


class Texts:
    """What is learned from texts, and by which head.

    Args:
        config: The settings.
        source: The base.
    """

    #: The term that is learned without a teacher, and the one that compares what heads say.
    reconstruction, predictions = TermSpec("reconstruction"), "logits"
    #: Share of a text that is hidden unless told.
    usual_share: ClassVar[float] = SHARE

    def __init__(self, config: AdaptConfig, source: Source) -> None:
        self.config = config
        self.source = source
        self.task = get_task("language-modelling")
        self.check_family()
        self.causal = models.is_causal(source.config)
        self.kind = self.task.kind().for_model(causal=self.causal)
        if config.normalize:
            raise ConfigError(f"`normalize` is for images, and `{source.name}` reads texts; leave it out")
        if self.causal and (config.masking != "mask" or config.mask_share is not None):
            raise ConfigError(
                f"`{source.name}` is a decoder, which learns the next token and hides none; leave out `masking` and "
                "`mask_share`"
            )

    def check_family(self) -> None:
        """Refuse families without the head of a language model."""
        head_classes(self.source.name, self.source.config, self.task)

    @property
    def has_head(self) -> bool:
        """Whether the base brings the head that is needed, alone or among others."""
        return self.kind.owns(self.source.architecture) or self._has_among_others

    @cached_property
    def _has_among_others(self) -> bool:
        """Whether a class that is named for pre-training predicts tokens; ELECTRA's tells replaced ones apart."""
        import torch
        import transformers

        if not self.source.architecture.endswith("ForPreTraining"):
            return False
        with torch.device("meta"):
            skeleton = getattr(transformers, self.source.architecture)._from_config(self.source.config)
        return skeleton.get_output_embeddings() is not None

    @cached_property
    def needs_warm_up(self) -> bool:
        """Whether the base lacks the head, and the head has weights of its own: one may be the word embedding alone."""
        import torch
        import transformers

        if self.has_head:
            return False
        with torch.device("meta"):
            skeleton = getattr(transformers, self.kind.head).from_config(self.source.config)
        inside = {id(parameter) for parameter in Anatomy.of(skeleton).base.parameters()}
        return any(id(parameter) not in inside for parameter in skeleton.parameters())

    @cached_property
    def processor(self) -> Any:
        """The tokenizer."""
        processor = models.load_processor(self.source.name)
        if not self.causal and getattr(processor, "mask_token_id", None) is None:
            raise ConfigError(
                f"the tokenizer of `{self.source.name}` has no mask token to hide words behind; give a model that was "
                "pre-trained with one"
            )
        return processor

    @cached_property
    def length(self) -> int:
        """Tokens of an example."""
        limits = (models.positions(self.source.config), getattr(self.processor, "model_max_length", None))
        return example_length(self.config.max_length, *limits)

    @cached_property
    def corpus(self) -> Corpus:
        """All of the corpus."""
        assert self.config.corpus is not None
        return self.config.open_texts()

    def model(self, start: str, *, whole: bool = False) -> PreTrainedModel:
        """A model with the head of a language model, which is new where the checkpoint has none.

        Args:
            start: The checkpoint.
            whole: Refuse one without that head.
        """
        import transformers

        transformers.set_seed(self.config.seed)  # a new head is drawn here
        whole = whole or (self.has_head and start == self.source.name)
        model = models.load_model(start, getattr(transformers, self.kind.head), whole=whole)
        models.name_padding(model, self.processor)
        return model

    def check_teacher(self, teacher: Source) -> None:
        """Refuse a teacher that reads other tokens or is of another width."""
        teacher.require(("plain",))
        check_same_tokens(models.load_processor(teacher.name), self.processor)
        widths = [each.config.hidden_size for each in (teacher, self.source)]
        if widths[0] != widths[1]:
            raise ConfigError(
                f"`teacher` is `{teacher.name}`, which is {widths[0]} wide, and the model {widths[1]}; give one of the "
                "same shape"
            )

    def stream(self, memo: Path, progress: Progress | None = None) -> Stream:
        """What is learned from, without end."""
        part, config = self.corpus.part(held_out=False), self.config
        stream = part.stream(
            self.processor,
            self.length,
            seed=config.seed,
            pack=config.pack,
            buffer=config.buffer * 2**20,
            memo=memo,
            **config.token_settings(part, progress),
        )
        return GroupedStream(stream, config.batch_size, config.seed) if config.group_by_length else stream

    def features(self, examples: Examples) -> Sequence[Inputs]:
        """Examples with what is hidden of them; decoders predict the next token and hide nothing."""
        return examples if self.causal else MaskedExamples(examples, self.masking(self.config.seed))

    def collator(self) -> Collator:
        """What makes batches."""
        padding = TensorCollator(padding_collator(self.processor, side="right"))
        return padding if self.causal else masked_collator(padding)

    def held_out(self, path: str | None = None) -> Sequence[Inputs]:
        """Texts that are not learned from, with what is hidden of them.

        Args:
            path: Text of another sort; None for what is held out of the corpus.
        """
        corpus = self.corpus.part(held_out=True) if path is None else open_corpus((path,))
        texts = list(corpus.first_documents(MEASURED))
        if not texts or not any(self.corpus.part(held_out=False).first_documents(1)):
            raise DataError(
                "the corpus has too few different documents to hold some out and measure on; give more of them"
            )
        encoded = self.processor(texts, truncation=True, max_length=self.length, return_token_type_ids=False)
        items = [
            {name: _numbers(encoded[name][row]) for name in ("input_ids", "attention_mask")}
            for row in range(len(texts))
        ]
        return items if self.causal else MaskedExamples(items, self.masking(MEASURED_SEED))

    def plain(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model as the base was: without a head that the base did not have."""
        if self.has_head or self.config.keep_head:
            return model
        bare = models.load_model(self.source.name, models.stored_class(self.source.config, self.source.name))
        # A pooler stands above what was trained, and stays.
        missing, unexpected = Anatomy.of(bare).base.load_state_dict(self.base_weights(model), strict=False)
        if unexpected or not all("pooler" in name for name in missing):
            raise CheckpointError(
                f"the weights of `{self.source.name}` cannot be put back: `{[*unexpected, *missing][0]}` fits nowhere; "
                "add `keep_head`"
            )
        bare.eval()
        return bare

    def base_weights(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """The weights of the base in a model with a head, by their names in the base; they are not copied."""
        return Anatomy.of(model).base.state_dict(keep_vars=True)

    @property
    def sentence(self) -> SentenceSettings | None:
        """How the base makes one vector of a text, if it is a sentence encoder."""
        return SentenceSettings.of(self.source.name)

    @property
    def pooling(self) -> tuple[str, ...] | None:
        """How the base pools, if it is a sentence encoder."""
        return None if self.sentence is None else tuple(self.sentence.pooling)

    def resolved(self) -> dict[str, Any]:
        """Settings that were left open, as texts of this model have them."""
        share = None if self.causal else self.usual_share
        return {"max_length": self.length, "mask_share": share, "corpus_weights": self.corpus.shares}

    def masking(self, seed: int) -> TokenMasking | WordDeletion:
        """What hides tokens."""
        return TokenMasking.of(self.processor, seed, self.config.mask_share or self.usual_share, self.config.masking)


def _numbers(ids: Any) -> Any:
    import numpy as np

    return np.array(ids, np.int32)
