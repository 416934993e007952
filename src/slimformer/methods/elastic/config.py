"""Settings of elastic training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, field_validator, model_validator

from slimformer.config import Positive, Temperature, Weight
from slimformer.corpus.options import TokenOptions
from slimformer.errors import ConfigError, SizeError
from slimformer.methods.origin import ScratchOptions
from slimformer.methods.streaming import TASK
from slimformer.sizes import ORDERINGS, RATIOS, Size, name_sizes
from slimformer.tasks.options import BaseOptions, TaskOptions
from slimformer.train.options import TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Settings that tell the sizes → what they are shares of.
SIZE_FIELDS = {"sizes": "neurons", "head_sizes": "heads", "depth_sizes": "depth", "output_sizes": "output"}
#: Settings of labelled data that a corpus has nothing of.
_LABELLED = ("data", "label_column", "header", "quoting", "shares", "label_separator", "language")
#: How far the probabilities may be from adding up to 1, as three thirds do.
ROUNDING = 0.01
#: Sizes that one model may have; each of them is measured.
MOST_SIZES = 32


class ElasticConfig(TrainingOptions, TaskOptions, TokenOptions, ScratchOptions, BaseOptions):
    """Train one model whose nested sizes all work: any of them, and mixtures of them, can be used or extracted."""

    sizes: str = Field(
        ",".join(f"{share:g}" for share in RATIOS),
        description="Shares of the feed-forward neurons, smallest first, joined by commas; the last is 1.",
    )
    head_sizes: str | None = Field(None, description="Shares of the heads for each size; by default all heads.")
    depth_sizes: str | None = Field(
        None, description="Shares of the blocks for each size, spread evenly; by default all blocks."
    )
    output_sizes: str | None = Field(
        None,
        description="Shares of an embedding's dimensions for each size, the first ones of it (Matryoshka, arXiv "
        "2205.13147); by default all dimensions.",
    )
    skip: bool = Field(False, description="Let blocks be skipped in allocations even if no size does.")
    training: Literal["sampled", "joint", "per-block"] = Field(
        "sampled",
        description="Each step trains one size drawn at random (MatFormer); all sizes on a part of the batch each "
        "(as DynaBERT, arXiv 2004.04037); or a size drawn for each block (as Once-for-All).",
    )
    probabilities: str | None = Field(
        None, description="How often each size is drawn, smallest first; by default all alike."
    )
    uniform_start: float = Field(
        0.0, ge=0, le=1, description="Share of the steps in which all sizes are drawn alike before that."
    )
    order: str | None = Field(
        None,
        description="Which neurons of a pretrained model the small sizes get: the most important by `activation` on "
        "training data (the default), by the `magnitude` of their weights, or `none` for the order as it is.",
    )
    calibration: Positive = Field(256, description="Training examples that activations are measured on.")
    distil: Weight | None = Field(
        None,
        description="Weight of learning what the largest size says, in the same step; by default 1 for a pretrained "
        "model and 0, labels alone, from scratch.",
    )
    temperature: Temperature = Field(1.0, description="Of the largest size's soft labels.")
    choose_by: Literal["mean", "largest"] = Field(
        "mean", description="Whether the best weights are best in the mean over sizes, or at the largest."
    )

    @field_validator("order")
    @classmethod
    def _known_order(cls, value: str | None) -> str | None:
        if value is not None and value not in ORDERINGS:
            raise ValueError(f"there is no order `{value}`; known: {', '.join(ORDERINGS)}")
        return value

    @model_validator(mode="after")
    def _one_start(self) -> ElasticConfig:
        if self.model is not None and self.is_new:
            name = next(name for name in ScratchOptions.model_fields if getattr(self, name) is not None)
            raise ValueError(f"`model` is a checkpoint, and `{name}` is for new weights; leave one of them out")
        if self.is_new and self.order not in (None, "none"):
            raise ValueError(f"`order` is `{self.order}`, and new weights have no order yet; leave it out")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> ElasticConfig:
        self.refuse_idle(self.idle_without_corpus(self.corpus is None, "`corpus`"))
        for name in (*_LABELLED, "limit", "group_by_length"):
            if self.corpus is not None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"`corpus` is text without labels, which `{name}` is not for; leave one of them out")
        if self.corpus is not None and self.task not in (None, TASK):
            raise ValueError(f"`task` is `{self.task}`, and a corpus is learned by `{TASK}`; leave one of them out")
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> ElasticConfig:
        try:
            sizes = self.nested()
        except SizeError as error:
            message = str(error)
            for setting, part in SIZE_FIELDS.items():
                message = message.replace(f"`{part}`", f"`{setting}`")
            raise ValueError(message) from error
        if len(sizes) > MOST_SIZES:
            raise ValueError(f"`sizes` names {len(sizes)} sizes; give at most {MOST_SIZES}")
        self.chances(len(sizes))
        if self.probabilities is not None and self.training != "sampled":
            raise ValueError("`probabilities` are those of drawing a size, and `training` draws none; leave them out")
        if self.training == "joint" and self.batch_size % len(sizes):
            raise ValueError(
                f"`batch_size` {self.batch_size} cannot be shared by {len(sizes)} sizes; give a multiple of "
                f"{len(sizes)}"
            )
        return self

    @property
    def plans_ahead(self) -> bool:
        """Whether a step depends on how many there will be."""
        return super().plans_ahead or self.uniform_start > 0

    @property
    def ordering(self) -> str:
        """The order of neurons: as asked for, else by activation where there are trained ones."""
        return self.order or ("none" if self.is_new else "activation")

    @property
    def distil_weight(self) -> float:
        """Weight of what the largest size says: as asked for, else 1 where it knows something to begin with."""
        return self.distil if self.distil is not None else 0.0 if self.is_new else 1.0

    def nested(self) -> tuple[Size, ...]:
        """The sizes asked for."""
        shares = [_numbers("sizes", self.sizes)]
        for name in tuple(SIZE_FIELDS)[1:]:
            value = getattr(self, name)
            shares.append(None if value is None else _numbers(name, value))  # type: ignore[arg-type]
        return name_sizes(*shares)

    def adopting(self, base: str, sizes: Sequence[Size], skip: bool) -> Self:
        """The settings with the sizes and the order of an elastic base; where others were asked for, an error."""
        settings = self.given()
        for name, share in SIZE_FIELDS.items():
            shares = [float(getattr(size, share)) for size in sizes]
            recorded = ",".join(f"{value:g}" for value in shares)
            asked = settings.get(name)
            if asked is not None and _numbers(name, asked) != shares:
                raise ConfigError(
                    f"`{name}` is `{asked}`, and `{base}` is elastic with {recorded}; leave it out to keep these"
                )
            settings[name] = None if name != "sizes" and set(shares) == {1.0} else recorded
        if settings.get("skip", skip) != skip:
            raise ConfigError(f"`skip` is `{not skip}`, and blocks of `{base}` were trained otherwise; leave it out")
        if settings.get("order", "none") != "none":
            raise ConfigError(
                f"`order` is `{settings['order']}`, and the neurons of `{base}` have the order its sizes were trained "
                "in; leave it out to keep it"
            )
        return self.make({**settings, "skip": skip, "order": "none"})

    def chances(self, count: int) -> tuple[float, ...]:
        """How often each size is drawn."""
        if self.probabilities is None:
            return (1 / count,) * count
        values = _numbers("probabilities", self.probabilities)
        if len(values) != count or any(value < 0 for value in values) or abs(sum(values) - 1) > ROUNDING:
            raise ValueError(
                f"`probabilities` is {self.probabilities}; give {count} numbers that are not negative and add up to 1"
            )
        return tuple(values)


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"`{name}` is `{text}`; give numbers joined by commas, such as 0.25,0.5,1")
    return numbers
