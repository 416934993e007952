"""Settings of quantization; the losses are those of arXiv 2211.11014."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from slimformer.config import Config, Positive, PositiveNumber, Temperature, Weight
from slimformer.corpus.options import CorpusOptions
from slimformer.errors import RegistryError
from slimformer.methods.terms import read_terms, refuse_both
from slimformer.objectives import TermSpec, parse_terms
from slimformer.registry import FORMATS
from slimformer.tasks.options import BaseOptions, TaskOptions
from slimformer.train.options import StepOptions, TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Weights that are left as they are.
FLOAT = "float"
Knowledge = Literal["map+output", "output+map", "map", "output", "mha", "score", "hidden", "none"]
#: The terms of kinds of knowledge besides soft labels and hidden states; the second of two is weighted by beta.
SHORTHANDS = {"map": "attention-maps", "output": "attention-output", "mha": "mha", "score": "attention-scores"}
#: How blocks are named.
LAYERS = r"all|every-[1-9]\d{0,3}|\s*-?\d{1,4}\s*(,\s*-?\d{1,4}\s*)*"
#: The clip of the published code, for weights and activations.
REFERENCE_CLIP = 2.5
#: Codes of a format from which on rounding with error compensation loses little: those of 4 bits.
MANY_LEVELS = 15
#: Steps of learning from the float model where a format has fewer.
LESSONS = 400
#: Bounds between which a clip can be divided by in every float type, and beyond which none is meant.
LEAST_CLIP, MOST_CLIP = 1e-4, 1e4


def _terms_of(knowledge: Knowledge) -> list[str]:
    return [SHORTHANDS[part] for part in knowledge.split("+") if part in SHORTHANDS]


def _format(value: Any) -> Any:
    """The registered name of a format, which may be written as its bits; in a YAML file these are a number."""
    name = str(value) if isinstance(value, int) else value
    if not isinstance(name, str) or name == FLOAT:
        return name
    if name not in FORMATS and f"int{name}" in FORMATS:
        return f"int{name}"
    try:
        FORMATS.help(name)
    except RegistryError as error:
        raise ValueError(f"{error}, {FLOAT}") from error
    return name


#: A name in `registry.FORMATS`, or `float`.
Format = Annotated[str, BeforeValidator(_format)]


def _check_clip(value: float) -> float:
    if value != 0 and not LEAST_CLIP <= value <= MOST_CLIP:
        raise ValueError(f"give 0 for none, or {LEAST_CLIP} to {MOST_CLIP:g}")
    return value


#: A bound on absolute values; 0 for none.
Clip = Annotated[float, AfterValidator(_check_clip)]


class NumberOptions(Config):
    """How weights and activations are represented."""

    weights: Format = Field(
        "ternary",
        description=f"Weights of blocks and pooler: {', '.join(FORMATS)} (`4` is short for `int4`), or `{FLOAT}` to "
        "leave them alone.",
    )
    embedding: Format | None = Field(
        None, description="The word embedding, one scale per row; by default as the other weights."
    )
    granularity: Literal["matrix", "row", "group"] = Field("row", description="What shares a weight scale.")
    group_size: Positive | None = Field(None, description="Weights of a row that share a scale, with `group`.")
    weight_clip: Clip = Field(REFERENCE_CLIP, description="Bound on weights; no gradient beyond it; 0 for none.")
    packing: Literal["fast", "small"] = Field(
        "fast", description="`small` for a smaller file that takes more work to read: ternary weights five to a byte."
    )
    activations: Literal["int8", "none"] = Field("int8", description="8-bit activations, or float ones.")
    activation_scale: Literal["token", "tensor"] = Field(
        "token", description="What shares an activation scale; with `tensor` answers depend on batch-mates."
    )
    activation_clip: Clip = Field(0.0, description="Bound on activations, no gradient beyond it; 0 for none.")
    asymmetric: bool = Field(False, description="Spread activation levels from the lowest to the highest value.")


class KnowledgeOptions(Config):
    """What the quantized model learns from the float one."""

    kd: Knowledge = Field(
        "map+output",
        description="What is learned besides soft labels and hidden states; `hidden` for these alone, `none` for the "
        "labels without a teacher.",
    )
    terms: Annotated[str | None, BeforeValidator(read_terms)] = Field(
        None, description="What is learned as a weighted sum, such as `logits:1, hidden[all]:0.5`, instead of `--kd`."
    )
    beta: Weight = Field(0.5, description="Weight of the second term of `map+output` or `output+map`.")
    balance: Literal["fixed", "auto"] = Field(
        "fixed", description="`auto` weighs map and output by their gradients while training, without a beta."
    )
    temperature: Temperature = Field(1.0, description="Temperature τ of attention maps, whose loss is taken times τ².")
    distil_layers: str = Field(
        "all", description="Blocks that are distilled: `all`, numbers such as `0,2,5`, or `every-2`, the last included."
    )
    mean_over_classes: bool = Field(False, description="Divide soft labels by the number of classes, as TernaryBERT.")
    dropout: bool | None = Field(
        None, description="Whether the student has dropout; by default only without a teacher, who has none either."
    )
    stages: int = Field(1, ge=1, le=2, description="2 to learn from the layers first and from the logits afterwards.")
    first_stage: Positive | None = Field(
        None, description="Steps of the first of two stages; by default half of `--max-steps`."
    )


class PostTrainingOptions(CorpusOptions):
    """Unlabelled texts or images instead of a task."""

    post_training: bool = Field(
        False,
        description="Quantize a finished model without labels, on the texts or images of `--corpus`: with error "
        "compensation alone from 4 bits on, with fewer by some steps of learning from its float self.",
    )
    calibration: Positive = Field(256, description="Texts or images that weights are rounded on.")


class QuantizeConfig(NumberOptions, KnowledgeOptions, TrainingOptions, TaskOptions, BaseOptions, PostTrainingOptions):
    """Train a fine-tuned model on in a few levels per weight, with its float self as teacher."""

    model: str | None = Field(
        None, description="A fine-tuned model: a folder or a Hub name; a bare base is fine-tuned first."
    )
    lr: PositiveNumber = Field(2e-4, description="Peak learning rate.")
    reference: bool = Field(
        False,
        description="Do as the published code: one scale per matrix and per activation tensor, clip 2.5, losses over "
        "padding too.",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("reference") in (True, "true"):
            published = {
                "granularity": "matrix",
                "activation_scale": "tensor",
                "activation_clip": REFERENCE_CLIP,
                "weight_clip": REFERENCE_CLIP,
            }
            return {**published, **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.granularity == "group") != (self.group_size is not None):
            raise ValueError(
                f"`granularity` is `{self.granularity}` and `group_size` is `{self.group_size}`; groups, and only "
                "they, need a size"
            )
        if self.activations == "none" and {self.weights, self.embedding or self.weights} == {FLOAT}:
            raise ValueError(
                f"`weights` is `{FLOAT}` and `activations` is `none`, so nothing would be quantized; leave out one of "
                "them"
            )
        if self.packing == "small" and not _has_small_layout(self.weights, self.embedding):
            raise ValueError(
                f"`packing` is `small`, and there is no smaller layout for `weights` `{self.weights}`; leave it out"
            )
        if self.terms is not None:
            refuse_both(self, "kd", "beta")
        elif self.balance == "auto" and len(_terms_of(self.kd)) != 2:
            raise ValueError(f"`balance` is `auto`, and `kd` `{self.kd}` has nothing to balance; use `map+output`")
        if not re.fullmatch(LAYERS, self.distil_layers):
            raise ValueError(
                f"`distil_layers` is `{self.distil_layers}`; give `all`, numbers such as `0,2,5`, or `every-2`"
            )
        return self

    @model_validator(mode="after")
    def _stages_follow_each_other(self) -> Self:
        first, steps = self.first_stage, self.max_steps
        if self.stages == 1 and first is not None:
            raise ValueError("`first_stage` is given, and there is only one; add `stages` 2 or leave it out")
        if self.stages == 1:
            return self
        if self.kd == "none":
            raise ValueError("`stages` is 2, and without a teacher there is only one; leave out `stages` or `kd`")
        if steps is None and first is None:
            raise ValueError("`stages` is 2; say with `first_stage` or `max_steps` when the second one begins")
        if steps is not None and (first or 1) >= steps:
            raise ValueError(
                f"`first_stage` is {first or 1} and `max_steps` {steps}, which leaves no step for the second of two "
                "stages; give more steps, or a shorter first stage"
            )
        return self

    def learned(self, blocks: Sequence[tuple[int, int]]) -> list[TermSpec]:
        """The objective as a list of terms, whichever way it was given.

        Args:
            blocks: Blocks of student and teacher that are compared.
        """
        if self.terms is not None:
            return parse_terms(self.terms)
        weighted = zip(_terms_of(self.kd), (1.0, self.beta), strict=False)
        layers = ("embeddings", *(str(student) for student, _ in blocks))
        return [TermSpec("logits"), TermSpec("hidden", 1.0, layers), *(TermSpec(*each) for each in weighted)]

    @model_validator(mode="after")
    def _with_labels_or_without(self) -> Self:
        if not self.post_training:
            names = (name for name in PostTrainingOptions.model_fields if name not in TaskOptions.model_fields)
            self.refuse_idle(dict.fromkeys(names, (True, "`post_training`")))
            return self
        for name in ("task", "data", "label_column"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}` is `{getattr(self, name)}`, and `post_training` sees no labels; leave out one of them"
                )
        if self.weights == FLOAT:
            raise ValueError(f"`weights` is `{FLOAT}`, and `post_training` is about weights; give `int8` or another")
        if self.granularity == "matrix":
            raise ValueError("`granularity` is `matrix`, which needs training; give `row` or `group`")
        for name in type(self).model_fields:
            self._refuse_without_labels(name)
        return self

    def _refuse_without_labels(self, name: str) -> None:
        """Refuse a setting that has no say in post-training, or none in formats that are only rounded."""
        value = getattr(self, name)
        if value == type(self).model_fields[name].default or name in WITHOUT_LABELS:
            return
        if name not in StepOptions.model_fields or name == "lr_grid":
            raise ValueError(f"`{name}` is `{value}` and changes nothing in post-training; leave it out")
        if not self.has_few_levels:
            raise ValueError(
                f"`{name}` is `{value}`, and `{self.weights}` is rounded without a training step; leave it out"
            )

    @property
    def has_few_levels(self) -> bool:
        """Whether rounding alone would lose too much."""
        return len(FORMATS.get(self.weights).codes) < MANY_LEVELS

    @property
    def lessons(self) -> TrainingOptions:
        """How a format of few levels learns from the float model in post-training."""
        settings = {name: getattr(self, name) for name in StepOptions.model_fields}
        return TrainingOptions.make({**settings, "max_steps": self.max_steps or LESSONS})

    @model_validator(mode="after")
    def _gradients_are_whole(self) -> Self:
        if self.shard and self.balance == "auto":
            raise ValueError(
                "`balance` is `auto`, which looks at gradients of whole weights, and with `shard` no process has "
                "them; give `beta`, or leave out `shard`"
            )
        return self

    @property
    def keeps_dropout(self) -> bool:
        """Whether the model's dropout stays while it learns; the published code leaves it in."""
        return (self.kd == "none" or self.reference) if self.dropout is None else self.dropout

    @property
    def plans_ahead(self) -> bool:
        """Whether a step depends on how many there will be."""
        return super().plans_ahead or (self.stages == 2 and self.first_stage is None)

    @property
    def steps_of_first_stage(self) -> int | None:
        """Steps before the logits take over; None for a single stage."""
        if self.stages == 1:
            return None
        return self.first_stage or max(1, (self.max_steps or 0) // 2)


#: Settings that post-training shares with training, whatever the format.
WITHOUT_LABELS = frozenset(
    {*NumberOptions.model_fields, *PostTrainingOptions.model_fields, *BaseOptions.model_fields}
    | {"max_length", "seed", "threads"}
)


def _has_small_layout(*names: str | None) -> bool:
    return any(FORMATS.get(name).small is not None for name in names if name is not None and name != FLOAT)
