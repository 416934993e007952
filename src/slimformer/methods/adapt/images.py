"""Images of a domain: a ViT with the decoder of a masked autoencoder, images with hidden patches, some held out."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.corpus import ImageCorpus, open_images
from slimformer.corpus.masked import MaskedExamples
from slimformer.corpus.options import MIXTURE_SETTINGS
from slimformer.errors import CheckpointError, ConfigError, DataError
from slimformer.models.autoencoder import as_autoencoder, as_vit, hides_patches, patch_count
from slimformer.objectives import TermSpec
from slimformer.tasks.features import StackingCollator, TensorCollator
from slimformer.tasks.images import check_image_size
from slimformer.tasks.masking import PatchMasking

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer.corpus import Examples, Stream
    from slimformer.corpus.tokens.building import Progress
    from slimformer.inference.source import Source
    from slimformer.methods.adapt.config import AdaptConfig
    from slimformer.tasks.features import Collator, Inputs

#: The part of the patches that is hidden unless given (arXiv 2111.06377, section 3).
SHARE = 0.75
#: One image in so many is held out; so many of them are measured on at most, hidden alike whatever the run's seed is.
HELD_OUT, MEASURED, MEASURED_SEED = 10, 1000, 0
#: Settings that are about text alone.
OF_TEXT = (
    "text_column", "header", "documents", "buffer", "max_length", "masking", "objective", "pack", "similarity_data",
    "group_by_length", "new_tokens", "token_cache", "workers", *MIXTURE_SETTINGS,
)  # fmt: skip


class Images:
    """What is learned from images, and by which decoder.

    Args:
        config: The settings.
        source: The base.
    """

    #: The term that is learned without a teacher, and the one that compares what decoders say.
    reconstruction, predictions = TermSpec("patches"), "patch-predictions"
    #: A ViT is no sentence encoder.
    pooling = sentence = None

    def __init__(self, config: AdaptConfig, source: Source) -> None:
        self.config = config
        self.source = source
        for name in OF_TEXT:
            value = getattr(config, name)
            if value != type(config).model_fields[name].default:
                raise ConfigError(
                    f"`{name}` is {value}, which is for text, and `{source.name}` sees images; leave it out"
                )
        if source.config.model_type != "vit" and not self.has_head:
            raise CheckpointError(
                f"`{source.name}` is a `{source.config.model_type}`, and patches are hidden from plain ViTs alone; "
                "give a model of type `vit`, or a `ViTMAEForPreTraining`"
            )

        if config.positions == "pooled":
            raise ConfigError("`positions` is `pooled`, which is for sentence encoders; give `all`, `mean` or `first`")
        self._check_share()

    def resolved(self) -> dict[str, Any]:
        """Settings that were left open, as images of this model have them."""
        trained: Any = self.source.config
        return {"mask_share": trained.mask_ratio if self.has_head else SHARE}

    def _check_share(self) -> None:
        share, patches = self.config.mask_share, patch_count(self.source.config)
        trained: Any = self.source.config
        other = self.has_head and (
            share not in (None, trained.mask_ratio) or (self.config.normalize and not trained.norm_pix_loss)
        )
        if other:
            raise ConfigError(
                f"`{self.source.name}` brings a decoder that was trained for a share of {trained.mask_ratio:g} and its "
                "own pixels; leave out `mask_share` and `normalize`"
            )
        if share is not None and not 1 <= int(patches * (1 - share)) < patches:
            raise ConfigError(
                f"`mask_share` is {share:g}, and of {patches} patches some have to be hidden and one has to stay; give "
                "another, such as 0.75"
            )

    @property
    def has_head(self) -> bool:
        """Whether the base brings a decoder."""
        return hides_patches(self.source.config) and self.source.architecture.endswith("ForPreTraining")

    @property
    def needs_warm_up(self) -> bool:
        """Whether a decoder is new."""
        return not self.has_head

    @cached_property
    def processor(self) -> Any:
        """What prepares images."""
        processor = models.load_processor(self.source.name)
        check_image_size(processor, self.source.config, self.source.name)
        return processor

    @cached_property
    def corpus(self) -> ImageCorpus:
        """All images."""
        assert self.config.corpus is not None
        return open_images(self.config.corpus)

    def model(self, start: str, *, whole: bool = False) -> PreTrainedModel:
        """A masked autoencoder, its decoder new where the checkpoint has none.

        Args:
            start: The checkpoint.
            whole: Refuse one without a decoder.
        """
        loaded = models.load_model(start, models.stored_class(models.load_config(start), start))
        if whole and not hides_patches(loaded.config):
            raise CheckpointError(f"`{start}` has no decoder whose predictions could be matched; match `features`")
        share = self.config.mask_share or SHARE
        model = as_autoencoder(loaded, mask_ratio=share, normalize=self.config.normalize, seed=self.config.seed)
        model.decoder.decoder_pos_embed.requires_grad_(False)  # fixed; a checkpoint does not say so
        return model

    def check_teacher(self, teacher: Source) -> None:
        """Refuse a teacher that sees other patches or is of another width."""
        teacher.require(("plain",))
        names = ("hidden_size", "image_size", "patch_size")
        for name in names:
            one, other = (getattr(each.config, name, None) for each in (teacher, self.source))
            if one != other:
                raise ConfigError(
                    f"`teacher` is `{teacher.name}`, whose `{name}` is {one}, and the model's is {other}; give one of "
                    "the same shape"
                )

    def stream(self, memo: Path, progress: Progress | None = None) -> Stream:
        """What is learned from, without end."""
        return self._part(held_out=False).stream(self.processor, seed=self.config.seed)

    def features(self, examples: Examples) -> Sequence[Inputs]:
        """Images with what is hidden of them."""
        return MaskedExamples(examples, self._masking(self.config.seed))

    def collator(self) -> Collator:
        """What makes batches."""
        return TensorCollator(StackingCollator())

    def held_out(self, path: str | None = None) -> Sequence[Inputs]:
        """Images that are not learned from, with what is hidden of them.

        Args:
            path: Images of another sort; None for what is held out of the corpus.
        """
        corpus = self._part(held_out=True) if path is None else open_images(path)
        if not len(corpus):
            raise DataError(f"the corpus has {len(self.corpus)} images, too few to hold some out; give more of them")
        examples = corpus.stream(self.processor, seed=MEASURED_SEED).first(min(MEASURED, len(corpus)))
        return MaskedExamples(examples, self._masking(MEASURED_SEED))

    def plain(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model as the base was: without a decoder that the base did not have."""
        if self.has_head or self.config.keep_head:
            return model
        base = models.load_model(self.source.name, models.stored_class(self.source.config, self.source.name))
        return as_vit(model, like=base)

    def base_weights(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """The weights of the encoder, by their names in it; they are not copied."""
        return Anatomy.of(model).base.state_dict(keep_vars=True)

    def _part(self, *, held_out: bool) -> ImageCorpus:
        chosen = [
            image for number, image in enumerate(self.corpus.images) if (number % HELD_OUT == HELD_OUT - 1) == held_out
        ]
        return ImageCorpus(chosen, self.corpus.files)

    def _masking(self, seed: int) -> PatchMasking:
        return PatchMasking(patch_count(self.source.config), seed)
