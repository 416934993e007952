"""Settings of elastic training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from slimformer.config import Positive
from slimformer.errors import SizeError
from slimformer.sizes import ORDERINGS, RATIOS, Size, name_sizes
from slimformer.tasks.options import BaseOptions, TaskOptions
from slimformer.train.options import TrainingOptions

#: How far the probabilities may be from adding up to 1, as three thirds do.
ROUNDING = 0.01


class ElasticConfig(TrainingOptions, TaskOptions, BaseOptions):
    """Train one model whose nested sizes all work: any of them, and mixtures of them, can be used or extracted."""

    sizes: str = Field(
        ",".join(f"{share:g}" for share in RATIOS),
        description="Shares of the feed-forward neurons, smallest first, joined by commas; the last is 1.",
    )
    head_sizes: str | None = Field(None, description="Shares of the heads for each size; by default all heads.")
    depth_sizes: str | None = Field(
        None, description="Shares of the blocks for each size, spread evenly; by default all blocks."
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
    order: str = Field(
        "activation",
        description="Which neurons the small sizes get: the most important by their activations on training data, by "
        "the magnitude of their weights, or `none` for the order as it is.",
    )
    calibration: Positive = Field(256, description="Training examples that activations are measured on.")
    distil: float = Field(
        1.0, ge=0, description="Weight of learning what the largest size says, in the same step; 0 for labels alone."
    )
    temperature: float = Field(1.0, gt=0, description="Of the largest size's soft labels.")
    choose_by: Literal["mean", "largest"] = Field(
        "mean", description="Whether the best weights are best in the mean over sizes, or at the largest."
    )

    @field_validator("order")
    @classmethod
    def _known_order(cls, value: str) -> str:
        if value not in ORDERINGS:
            raise ValueError(f"there is no order `{value}`; known: {', '.join(ORDERINGS)}")
        return value

    @model_validator(mode="after")
    def _sizes_fit(self) -> ElasticConfig:
        try:
            sizes = self.nested()
        except SizeError as error:
            raise ValueError(str(error)) from error
        self.chances(len(sizes))
        if self.probabilities is not None and self.training != "sampled":
            raise ValueError("`probabilities` are those of drawing a size, and `training` draws none; leave them out")
        if self.training == "joint" and self.batch_size % len(sizes):
            raise ValueError(
                f"`batch_size` {self.batch_size} cannot be shared by {len(sizes)} sizes; give a multiple of "
                f"{len(sizes)}"
            )
        return self

    def nested(self) -> tuple[Size, ...]:
        """The sizes asked for."""
        shares = [_numbers("sizes", self.sizes)]
        for name in ("head_sizes", "depth_sizes"):
            value = getattr(self, name)
            shares.append(None if value is None else _numbers(name, value))  # type: ignore[arg-type]
        return name_sizes(*shares)

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
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"`{name}` is `{text}`; give numbers joined by commas, such as 0.25,0.5,1") from None
