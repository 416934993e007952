"""Settings of further pre-training (arXiv 2210.02871); the learning rate is the paper's for text, passes are fewer."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from slimformer.config import Epochs, Positive, PositiveNumber, Weight
from slimformer.corpus.options import StreamOptions
from slimformer.errors import ConfigError
from slimformer.methods.corpus import CacheOptions
from slimformer.methods.then import ThenOptions
from slimformer.objectives import TermSpec
from slimformer.tasks.masking import Masking
from slimformer.tasks.options import BaseOptions, StoreOptions
from slimformer.train.options import StepOptions

Positions = Literal["all", "mean", "first", "pooled"]
Match = Literal["features", "predictions", "weights-l2", "weights-mars"]
Objective = Literal["masked", "tsdae"]
#: Most rounds; the first brings most of the gain.
MOST_ROUNDS = 100
#: Settings of the whole run that its phases do not share: each has its own, or none.
NOT_SHARED = (
    "rounds", "model", "new_tokens", "teacher", "trains", "out", "store", "keep_head", "head_steps", "general",
    "similarity_data", "similarity_task", "tensorboard", *ThenOptions.model_fields,
)  # fmt: skip
#: Settings of what is learned beside a teacher, or from it.
OF_TEACHING = ("reconstruction", "match", "positions", "reduction", *CacheOptions.model_fields)


class AdaptConfig(StepOptions, StreamOptions, BaseOptions, StoreOptions, CacheOptions, ThenOptions):
    """Pre-train a model further on text or images of a domain, and distil it from itself so that it forgets less."""

    rounds: int | None = Field(
        None,
        ge=0,
        le=MOST_ROUNDS,
        description="Rounds of self-distillation, each from the base again, by default 1, with `tsdae` 0; 0 for "
        "further pre-training alone.",
    )
    objective: Objective = Field(
        "masked",
        description="What is learned without a teacher: `masked` predicts what is hidden (a decoder: the next token), "
        "`tsdae` a text from the sentence embedding of some of its words.",
    )
    epochs: Epochs = Field(10.0, description="Passes over the corpus in each round; `--max-steps` wins over it.")
    batch_size: Positive = Field(64, description="Examples per optimizer step, over all processes.")
    lr: PositiveNumber = Field(1e-4, description="Peak learning rate.")
    masking: Masking = Field(
        "mask",
        description="What stands for a hidden token: `mask` always the mask token, as the paper; `bert` 80 % of the "
        "time; `words` hides whole words.",
    )
    mask_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Part that is hidden; by default 0.15 of the tokens, or 0.75 of the patches; with `tsdae` "
        "the part of the words that is deleted, 0.6.",
    )
    normalize: bool = Field(False, description="Reconstruct pixels normalised patch by patch; for images.")
    pack: bool = Field(False, description="Put texts together to full length instead of one text an example.")
    group_by_length: bool = Field(False, description="Put texts of similar length into one batch, which saves padding.")
    reconstruction: Weight = Field(1.0, description="Weight of the reconstruction beside the distillation.")
    match: Match = Field(
        "features",
        description="What is kept of the round before: `features` of the text as it is, `predictions` under masks, or "
        "the weights, by their Euclidean distance (`weights-l2`) or by the longest row (`weights-mars`).",
    )
    positions: Positions | None = Field(
        None,
        description="Whose features: `all` tokens, their `mean`, the `first` ([CLS]) or the `pooled` sentence "
        "embedding; by default `pooled` for a sentence encoder, else `all`.",
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean", description="Squared differences as a mean over positions and features, or their sum as in the paper."
    )
    new_tokens: Positive | None = Field(
        None,
        description="Word pieces that the model gets before everything else, chosen from the corpus; by default none.",
    )
    head_steps: Positive = Field(200, description="Steps in which a new head is trained alone before the first round.")
    keep_head: bool = Field(False, description="Keep the head of a language model that the base did not have.")
    general: str | None = Field(
        None, description="Text of no domain, a file or folder: what the result forgets of it is measured."
    )
    similarity_data: str | None = Field(
        None,
        description="Pairs of texts with scores: how well embeddings agree with them is measured before and after.",
    )
    similarity_task: str = Field("stsb-similarity", description="How `--similarity-data` is read.")
    teacher: str | None = Field(
        None, description="Distil from this model of the same shape instead of from rounds of this run."
    )
    trains: Literal["all", "head"] = Field(
        "all", description="`head`: train the head of the language model alone, the rest stays."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rounds and self.teacher is not None:
            raise ValueError(
                f"`teacher` is `{self.teacher}` and `rounds` is {self.rounds}, which make teachers of their own; give "
                "one of them"
            )
        if self.trains == "head" and (self.teacher is not None or self.rounds):
            raise ValueError("`trains` is `head`, into which nothing is distilled; leave out `teacher` and `rounds`")
        if self.new_tokens is not None and self.teacher is not None:
            raise ValueError(
                f"`new_tokens` is {self.new_tokens}, and `teacher` `{self.teacher}` does not know pieces that are new; "
                "leave out one of them, or extend the model first with `slimformer extend`"
            )
        idle = {"head_steps": (self.trains == "head", "`trains` `all`")}
        self.refuse_idle(idle | self._idle() | self.idle_without_task() | self.idle_without_cache())
        if self.reconstruction == 0 and not self.distils:
            raise ValueError("`reconstruction` is 0 and nothing is distilled, so nothing would be learned; give more")
        return self

    @model_validator(mode="after")
    def _decodes_alone(self) -> Self:
        if self.objective == "tsdae" and self.keep_head and self.trains == "all":
            raise ValueError(
                "`keep_head` is on and `objective` is `tsdae`, whose decoder lies in the blocks of the encoder and "
                "hides later tokens from it; leave out `keep_head`"
            )
        if self.objective == "tsdae" and self.match != "features":
            raise ValueError(
                f"`match` is `{self.match}`, which would compare decoders too, and that of `objective` `tsdae` is left "
                "behind after each round; match `features`"
            )
        return self

    def _idle(self) -> dict[str, tuple[bool, str]]:
        """Settings that would change nothing, and what they need."""
        always = dict.fromkeys(("masking", "pack"), (self.objective != "masked", "`objective` `masked`"))
        always["group_by_length"] = (self.pack, "texts that are not packed")
        always["similarity_task"] = (self.similarity_data is None, "`similarity_data`")
        of_features = ("positions", "reduction", "teacher_cache")
        if not self.distils:
            return {**always, **dict.fromkeys(("match", *of_features), (True, "a round or a `teacher`"))}
        return {**always, **dict.fromkeys(of_features, (self.match != "features", "`match` `features`"))}

    @property
    def own_rounds(self) -> int:
        """Rounds that this run has phases for."""
        if self.teacher is not None or self.trains == "head":
            return 0
        return int(self.objective == "masked") if self.rounds is None else self.rounds

    @property
    def distils(self) -> bool:
        """Whether anything is learned from a teacher."""
        return self.teacher is not None or self.own_rounds > 0

    def phase(self, name: str, **changes: Any) -> AdaptConfig:
        """The settings of a run that belongs to this one.

        Args:
            name: What it is called, such as `round-0`.
            changes: What it starts from and where its result goes, and what else is different.
        """
        without = NOT_SHARED if changes.get("teacher") is not None else (*NOT_SHARED, *OF_TEACHING)
        shared = {name: value for name, value in self.given().items() if name not in without}
        if self.tensorboard is not None:
            shared["tensorboard"] = f"{self.tensorboard}/{name}"
        # Of TSDAE, a round teaches by its features alone.
        keeps = self.objective == "masked" or changes.get("trains") == "head"
        return AdaptConfig.make({**shared, "rounds": 0, "keep_head": keeps, **changes})

    def compared_positions(self, pooling: tuple[str, ...] | None) -> Positions:
        """Whose features are compared: as asked for, else as the base pools."""
        return self.positions or ("all" if pooling is None else "pooled")

    def matching_terms(self, predictions: str, pooling: tuple[str, ...] | None) -> list[TermSpec]:
        """What is learned from a teacher.

        Args:
            predictions: The term that compares what heads say of what is hidden.
            pooling: How the base pools, if it is a sentence encoder.
        """
        if not self.distils:
            return []
        if self.match == "predictions":
            return [TermSpec(predictions)]
        if self.match != "features":
            return [TermSpec("weights", options={"norm": self.match.removeprefix("weights-")})]
        positions = self.compared_positions(pooling)
        if positions != "pooled":
            return [TermSpec("features", options={"positions": positions, "reduction": self.reduction})]
        if self.reduction != "mean":
            raise ConfigError(
                f"`reduction` is `{self.reduction}`, and pooled embeddings are compared by their cosine; leave it "
                "out, or give `positions` such as `all`"
            )
        return [TermSpec("pooled", options={"pooling": "+".join(pooling or ("mean",))})]
