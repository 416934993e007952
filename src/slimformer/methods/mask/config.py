"""Settings of masking."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from slimformer.config import PositiveNumber, Share, Weight
from slimformer.tasks.options import BaseOptions, TaskOptions
from slimformer.train.options import TrainingOptions

#: What a matrix is called in the settings → its roles in a block's anatomy.
ROLES = {
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "o": ("output",),
    "ffn-in": ("up", "gate"),
    "ffn-out": ("down",),
}
#: Matrices outside the blocks.
OTHERS = ("pooler", "classifier")
MATRICES = (*ROLES, *OTHERS)
#: Share of the steps after which the sparsity asked for, and the structure, are reached.
RAMP = 0.7

#: No model has more blocks; of a range without bounds a list would be made.
MOST_BLOCKS = 9_999
BlockCount = Annotated[int, Field(ge=1, le=MOST_BLOCKS)]
_BLOCKS = re.compile(r"\d{1,4}(-(\d{1,4})?)?(,\d{1,4}(-(\d{1,4})?)?)*")


class MaskConfig(TrainingOptions, TaskOptions, BaseOptions):
    """Learn which weights of a base to keep for a task: one bit for each, and nothing of the base is changed."""

    # Scores move by about the learning rate per step and have to cross the threshold, hence the higher rate. A weight
    # decay would pull every score towards 0, which lies below the threshold, and so drop weights for no reason.
    lr: PositiveNumber = Field(2e-3, description="Peak learning rate of the scores and of a trained classifier.")
    weight_decay: Weight = Field(
        0.0, description="Decoupled weight decay; it pulls scores below the threshold and so drops weights."
    )
    initial_sparsity: Share = Field(0.05, description="Share of the weights that is dropped at the start.")
    init: Literal["uniform", "magnitude"] = Field(
        "uniform", description="How scores start: at random, or with the smallest weights dropped."
    )
    threshold: PositiveNumber = Field(0.01, description="Score above which a weight is kept.")
    blocks: str = Field("2-", description="Blocks to mask, counted from 0: `2-`, `1-5` or `0,3,5`.")
    top_down: BlockCount | None = Field(None, description="Mask this many blocks from the top instead of `--blocks`.")
    bottom_up: BlockCount | None = Field(None, description="Mask this many from the bottom instead of `--blocks`.")
    matrices: str = Field(
        ",".join(MATRICES), description=f"Matrices to mask, joined by commas, out of {', '.join(MATRICES)}."
    )
    classifier: Literal["trained", "masked"] = Field(
        "trained", description="Whether a new head is trained, or stays random and is masked like the rest."
    )
    sparsity: Share | None = Field(
        None, description="Share of each matrix to drop in the end; by default what the threshold leaves."
    )
    structured: Literal["neurons", "heads", "both"] | None = Field(
        None, description="Drop whole feed-forward neurons, attention heads or both, which makes the model faster."
    )
    anneal: bool = Field(
        False, description="With `--structured` and `--sparsity`, begin with single weights and grow into whole units."
    )

    @field_validator("blocks")
    @classmethod
    def _blocks_can_be_read(cls, blocks: str) -> str:
        if not _BLOCKS.fullmatch(blocks.replace(" ", "")):
            raise ValueError(f"give blocks counted from 0 to {MOST_BLOCKS} as `2-`, `1-5` or `0,3,5`")
        for first, last in re.findall(r"(\d+)-(\d+)", blocks):
            if int(first) > int(last):
                raise ValueError(f"`{first}-{last}` runs backwards; give `{last}-{first}`")
        return blocks.replace(" ", "")

    @field_validator("matrices")
    @classmethod
    def _matrices_are_known(cls, matrices: str) -> str:
        for name in (names := matrices.replace(" ", "").split(",")):
            if name not in MATRICES:
                raise ValueError(f"there is no matrix `{name}`; known: {', '.join(MATRICES)}")
        return ",".join(names)

    @model_validator(mode="after")
    def _settings_agree(self) -> MaskConfig:
        if self.top_down is not None and self.bottom_up is not None:
            raise ValueError("`--top-down` and `--bottom-up` both say which blocks to mask; give one of them")
        if (self.top_down or self.bottom_up) is not None and "blocks" in self.model_fields_set:
            raise ValueError("`--blocks` and `--top-down` or `--bottom-up` both say which blocks to mask; give one")
        if self.classifier == "masked" and not self.masks("classifier"):
            raise ValueError("`--classifier` is `masked`, but `--matrices` leaves the classifier out; add it there")
        if self.anneal and (self.structured is None or self.sparsity is None):
            raise ValueError("`--anneal` needs `--structured` and `--sparsity`, which say what to grow into")
        if self.sparsity is not None and self.max_steps is None:
            raise ValueError("`--sparsity` is reached step by step and needs to know how many; give `--max-steps`")
        return self

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the matrices that are masked in a block."""
        return tuple(role for name in self.matrices.split(",") for role in ROLES.get(name, ()))

    @property
    def plans_ahead(self) -> bool:
        """Whether a step depends on how many there will be."""
        return super().plans_ahead or self.sparsity is not None

    @property
    def ramp_steps(self) -> int:
        """Steps until the sparsity asked for is reached."""
        return max(1, int(RAMP * (self.max_steps or 1)))

    def masks(self, name: str) -> bool:
        """Whether a matrix outside the blocks is masked."""
        return name in self.matrices.split(",")

    def prunes(self, unit: str) -> bool:
        """Whether whole neurons or heads are dropped."""
        return self.structured in (unit, "both")

    def block_numbers(self, count: int) -> list[int]:
        """The blocks to mask in a model of `count` blocks; those beyond it are the caller's to refuse."""
        if self.top_down is not None:
            return list(range(count - self.top_down, count))
        if self.bottom_up is not None:
            return list(range(self.bottom_up))
        numbers: set[int] = set()
        for part in self.blocks.split(","):
            first, dash, last = part.partition("-")
            numbers |= set(range(int(first), (int(last) if last else count - 1) + 1)) if dash else {int(first)}
        return sorted(numbers)
