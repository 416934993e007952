"""Sentences of a domain, embedded and reconstructed: TSDAE (arXiv 2104.06979)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer import models
from slimformer.errors import ConfigError
from slimformer.methods.adapt.texts import Texts
from slimformer.models.denoising import as_decoder, as_denoiser, as_encoder, check_decodes, encoder_weights, has_decoder
from slimformer.models.sentence import SentenceSettings
from slimformer.objectives import TermSpec
from slimformer.tasks.masking import WordDeletion

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer.inference.source import Source
    from slimformer.methods.adapt.config import AdaptConfig

#: Part of the words that is deleted unless given, and how a base that does not say pools (arXiv 2104.06979).
SHARE, POOLING = 0.6, "cls"


class Sentences(Texts):
    """What is learned from texts by embedding some of their words, and by which decoder.

    Args:
        config: The settings.
        source: The base.
    """

    usual_share = SHARE

    def __init__(self, config: AdaptConfig, source: Source) -> None:
        super().__init__(config, source)
        ways = "+".join(self.sentence.pooling)
        if "+" in ways:
            raise ConfigError(
                f"`{source.name}` pools by `{ways}`, and a decoder attends to one vector as wide as the model; give a "
                "base that pools one way"
            )
        self.reconstruction = TermSpec("denoising", options={"pooling": ways})

    def check_family(self) -> None:
        """Refuse families without a decoder that attends to a vector."""
        check_decodes(self.source.config, self.source.name)

    @property
    def has_head(self) -> bool:
        """Whether the base brings a decoder that attends to a vector."""
        return has_decoder(self.source.config)

    @property
    def needs_warm_up(self) -> bool:
        """Whether a decoder is new."""
        return not self.has_head

    @property
    def sentence(self) -> SentenceSettings:
        """How the base makes one vector of a text; one that does not say becomes a sentence encoder."""
        return super().sentence or SentenceSettings((POOLING,))

    def model(self, start: str, *, whole: bool = False) -> PreTrainedModel:
        """An encoder that decodes too, its cross-attention new where the checkpoint has none.

        Args:
            start: The checkpoint.
            whole: Is not asked for: what heads say is not compared.
        """
        model = models.load_model(start, models.stored_class(models.load_config(start), start), whole=whole)
        denoiser = as_denoiser(model, seed=self.config.seed)
        models.name_padding(denoiser, self.processor)
        return denoiser

    def plain(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model as the base was, without cross-attention unless that is kept: tokens would not see later ones."""
        if self.config.keep_head:
            return as_decoder(model)
        return as_encoder(model).eval() if self.has_head else super().plain(model)

    def base_weights(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """The weights of the encoder, by their names in it; they are not copied."""
        return encoder_weights(model)

    def masking(self, seed: int) -> WordDeletion:
        """What deletes words."""
        return WordDeletion.of(self.processor, seed, self.config.mask_share or self.usual_share)
