"""Settings of distillation; how long to train by default is one of several presets, among them the paper's."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from slimformer.config import Bytes, Config, Count, Epochs, Positive, PositiveNumber, Temperature, split_items
from slimformer.corpus.options import StreamOptions
from slimformer.counts import MOST
from slimformer.methods.corpus import CacheOptions
from slimformer.methods.terms import read_terms, refuse_both
from slimformer.methods.then import ThenOptions
from slimformer.models.building import MOST_BLOCKS, MOST_WIDTH, Shape
from slimformer.objectives import TermSpec, parse_terms
from slimformer.objectives.spec import ALL_PAIRS
from slimformer.tasks.options import StoreOptions
from slimformer.train.options import StepOptions

Objective = Literal["relations", "minilm-v1", "hidden-states", "soft-labels"]
Pooling = Literal["recorded", "mean", "cls", "max", "lasttoken"]
Start = Literal["random", "truncate", "spaced"]
Preset = Literal["laptop", "gpu", "paper"]
#: How to train on which machine: about two hours on two cores for a small teacher, a night on one GPU, and what the
#: paper did on many (arXiv 2012.15828, section 4.1). Longer lengths than the models take become theirs.
PRESETS: dict[Preset, dict[str, Any]] = {
    "laptop": {"max_steps": 5_000, "batch_size": 32, "max_length": 128, "lr": 1e-3, "warmup": 0.05},
    "gpu": {"max_steps": 100_000, "batch_size": 256, "max_length": 128, "lr": 6e-4, "warmup": 0.01},
    "paper": {"max_steps": 400_000, "batch_size": 256, "max_length": 512, "lr": 6e-4, "warmup": 0.01},
}
#: What is trained with unless told otherwise: nobody should begin a run of months by leaving something out.
PRESET: Preset = "laptop"
#: Settings that tell how large a student is.
SIZES = ("layers", "hidden", "heads", "ffn", "embedding")
#: Settings that say how large a student may be at most → what they limit.
BUDGETS = {"max_bytes": "bytes", "max_params": "parameters"}
#: Objectives whose one term has another name.
SHORTHANDS = {"hidden-states": "hidden", "soft-labels": "logits"}
#: Names that stand for a block of the teacher.
LAYERS = ("last", "upper-middle", "auto")


def _split(value: Any) -> Any:
    """Accept `qq,kk,vv` and `all` as well as a list of pairs."""
    names = split_items(value)
    return ALL_PAIRS if names == ("all",) else names


def _layer(value: Any) -> Any:
    """Say at once what can be given; the parts of a union would each say something else."""
    if value is None or value in LAYERS or (isinstance(value, int) and abs(value) <= MOST_BLOCKS):
        return value
    if re.fullmatch(r"-?\d{1,4}", str(value) if isinstance(value, str) else ""):
        return int(value)
    raise ValueError(f"give a block number from 0, or {', '.join(f'`{name}`' for name in LAYERS)}")


class StudentShape(Shape):
    """How large the student is; what is not given is the teacher's."""

    heads: int | None = Field(
        None,
        ge=1,
        le=MOST_WIDTH,
        description="Attention heads of the student; by default the paper's 12 for another width than the teacher's, "
        "where they fit, else the teacher's.",
    )
    embedding: int | None = Field(
        None, ge=1, le=MOST_WIDTH, description="Width of factorised embeddings, less than `--hidden`."
    )
    start: Start = Field(
        "random",
        description="What the student starts from: random weights, the teacher's bottom blocks, or evenly spaced ones.",
    )


class BudgetOptions(Config):
    """What the student may cost at most; the largest shape that keeps to it is taken."""

    max_bytes: Bytes | None = Field(
        None,
        description="The most bytes of the student's file, such as `10MB`; what is not given of its shape is chosen.",
    )
    max_params: Count | None = Field(None, description="Or the most parameters, such as `2.5M`.")
    max_ms: PositiveNumber | None = Field(
        None,
        description="Or the most milliseconds for one text of `--max-length` tokens (128 by default), measured here.",
    )
    trim: bool = Field(
        False,
        description="Drop the word pieces that the corpus does not use, as `slimformer trim` does, from teacher and "
        "student.",
    )
    keep: int | None = Field(
        None, ge=1, le=MOST, description="Pieces that `--trim` keeps; by default as many as `slimformer trim` does."
    )

    @property
    def has_budget(self) -> bool:
        """Whether a shape is to be chosen."""
        return any(each is not None for each in (self.max_bytes, self.max_params, self.max_ms))


class TeacherOptions(Config):
    """Who teaches and where the result goes."""

    teacher: str | None = Field(None, description="The teacher: a folder, a Hub name or an alias such as `minilm`.")
    out: str | None = Field(
        None, description="Folder for the student; it must not exist yet, unless `--overwrite` is given."
    )


class DistillConfig(
    StepOptions, StreamOptions, StudentShape, BudgetOptions, TeacherOptions, CacheOptions, ThenOptions, StoreOptions
):
    """Distil a teacher into a student of any shape, on text or images without labels."""

    student: str | None = Field(
        None, description="A checkpoint to start from instead of `--layers`, `--hidden`, …; it needs the same tokens."
    )
    objective: Objective = Field(
        "relations", description="What is learned: self-attention relations (MiniLMv2), or one of the baselines."
    )
    terms: Annotated[str | None, BeforeValidator(read_terms)] = Field(
        None,
        description="What is learned, as a weighted sum such as `relations:1, logits:0.5, hidden[all]:0.1`.",
    )
    relation_heads: Positive | None = Field(
        None, description="Relation heads; by default 48, or 64 for large teachers, or the next fewer that fit."
    )
    relations: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        ("qq", "kk", "vv"), description="Which relations, such as `qq,kk,vv`; `all` for all nine."
    )
    relation_weights: Annotated[tuple[float, ...] | None, BeforeValidator(split_items)] = Field(
        None, description="Weight of each relation in the loss, such as `1,1,0.5`; 1 unless given."
    )
    teacher_layer: Annotated[int | Literal["last", "upper-middle", "auto"] | None, BeforeValidator(_layer)] = Field(
        None,
        description="Block of the teacher to learn from: a number from 0, a name, or `auto` to try them; by default "
        "`last`, or `upper-middle` for relations of teachers with 24 blocks or more.",
    )
    teacher_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Precision the teacher computes in; the student keeps float32. A 16-bit teacher takes half the "
        "memory and, where the hardware knows such numbers, about half the time.",
    )
    probe_steps: Positive = Field(50, description="Steps of the first round of trials of `--teacher-layer auto`.")
    pooled: Pooling | None = Field(
        None,
        description="Learn the teacher's sentence embeddings too, pooled this way; `recorded` for the way recorded "
        "with the teacher, or the mean where there is none.",
    )
    pooled_weight: PositiveNumber = Field(1.0, description="Weight of the sentence embeddings in the loss.")
    temperature: Temperature = Field(1.0, description="Temperature of soft labels.")
    preset: Preset = Field(
        PRESET, description="Steps, batch size, length, learning rate and warm-up, where these are not given by name."
    )
    epochs: Epochs | None = Field(None, description="Passes over the corpus; `--max-steps` wins over it.")
    max_steps: Positive | None = Field(
        PRESETS[PRESET]["max_steps"], description="Optimizer steps to take; by default the preset's."
    )
    batch_size: Positive = Field(
        PRESETS[PRESET]["batch_size"],
        description="Examples per optimizer step, over all processes; by default the preset's.",
    )
    max_length: Positive | None = Field(
        None, description="Tokens of an example; by default the preset's, or as many as the models take."
    )
    lr: PositiveNumber = Field(PRESETS[PRESET]["lr"], description="Peak learning rate; by default the preset's.")
    warmup: float = Field(
        PRESETS[PRESET]["warmup"],
        ge=0,
        lt=1,
        description="Share of the steps over which the learning rate rises; by default the preset's.",
    )
    report: str | None = Field(None, description="HTML file for loss curves, sizes and settings.")

    @model_validator(mode="after")
    def _take_preset(self) -> Self:
        # What is taken from a preset counts as not given: a config file, or another preset, may still say otherwise.
        for name, number in PRESETS[self.preset].items():
            if name not in self.model_fields_set and name != "max_length":
                self.__dict__[name] = number
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for pair in self.relations:
            if pair not in ALL_PAIRS:
                raise ValueError(f"there is no relation `{pair}`; choose from {', '.join(ALL_PAIRS)}, or `all`")
        if len(set(self.relations)) < len(self.relations):
            raise ValueError(f"`relations` is `{','.join(self.relations)}`, which names one twice; name each once")
        weights = self.relation_weights
        if weights is not None and len(weights) != len(self.relations):
            raise ValueError(
                f"`relation_weights` has {len(weights)} weights for {len(self.relations)} relations; give one for each"
            )
        if weights is not None and (min(weights) < 0 or not any(weights)):
            what = "are all 0" if not any(weights) else "are not all 0 or more"
            raise ValueError(
                f"`relation_weights` {what}, so nothing would be learned; give 0 or more, one of them above"
            )
        if self.terms is not None:
            refuse_both(self, "objective", "pooled", "pooled_weight")
        return self

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if self.student is not None:
            shaping = [*StudentShape.model_fields, *BudgetOptions.model_fields]
            given = [name for name in shaping if name in self.model_fields_set]
            if given:
                raise ValueError(
                    f"`student` is a checkpoint with a shape of its own; leave out `{given[0]}` or `student`"
                )
        if self.max_ms is not None and self.lr_grid is not None:
            raise ValueError("`max_ms` would be measured anew for each rate of `lr_grid`; keep one of them")
        return self

    @model_validator(mode="after")
    def _settings_have_effect(self) -> Self:
        learned = {term.name for term in self.learned}
        idle = {
            "keep": (not self.trim, "`trim`"),
            "probe_steps": (self.teacher_layer != "auto", "`teacher_layer` `auto`"),
            "pooled_weight": (self.pooled is None and self.terms is None, "`pooled`"),
            "temperature": ("logits" not in learned, "`objective` `soft-labels`"),
        }
        self.refuse_idle(idle | self.idle_without_task() | self.idle_without_cache())
        return self

    @property
    def learned(self) -> list[TermSpec]:
        """The objective as a list of terms, whichever way it was given."""
        if self.terms is not None:
            return parse_terms(self.terms)
        ways = () if self.pooled in (None, "recorded") else (self.pooled,)
        pooled = [] if self.pooled is None else [TermSpec("pooled", self.pooled_weight, ways)]
        return [TermSpec(SHORTHANDS.get(self.objective, self.objective)), *pooled]

    @property
    def passes(self) -> float | None:
        """Passes over the corpus, if these decide how long to train and not a number of steps."""
        return None if "max_steps" in self.model_fields_set or self.epochs is None else self.epochs
