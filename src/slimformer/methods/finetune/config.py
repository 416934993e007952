"""Settings of fine-tuning."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from slimformer.errors import ConfigError
from slimformer.tasks.options import BaseOptions, StoreOptions, TaskOptions
from slimformer.train.options import TrainingOptions


class FinetuneConfig(TrainingOptions, TaskOptions, BaseOptions, StoreOptions):
    """Fine-tune all weights of a model on a task: the baseline every method is compared with."""

    keep_close: str | None = Field(
        None,
        description="Keep the model close to its base by `recadam`, `mars`, `frobenius`, `r3f` or `supcon`, with "
        "numbers in brackets and a weight behind them where it has one: `recadam[pull=2000]`, `r3f[noise=0.001]:0.5`; "
        "`none` or nothing for plain fine-tuning.",
    )

    @field_validator("keep_close")
    @classmethod
    def _baseline_is_known(cls, value: str | None) -> str | None:
        if value is None or value == "none":
            return None
        from slimformer.methods.finetune.baselines import read_baseline

        try:
            return str(read_baseline(value))
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _weights_are_whole(self) -> Self:
        if self.shard and self.keep_close is not None:
            raise ValueError(
                f"`keep_close` is `{self.keep_close}`, which compares weights with the base's, and with `shard` no "
                "process has all of them; leave out one of both"
            )
        return self

    @property
    def plans_ahead(self) -> bool:
        """Whether a step depends on how many there will be: RecAdam lets go of the base in the course of them."""
        return super().plans_ahead or (self.keep_close or "").startswith("recadam")
