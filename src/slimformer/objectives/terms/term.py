"""What a term is: what it records of teacher and student, how it compares them, and what it is a mean over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field

from slimformer.config import Config
from slimformer.errors import ConfigError
from slimformer.objectives.recording import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from slimformer.anatomy import Anatomy
    from slimformer.objectives.recording import Activations

#: Variants of the inputs: as they are, and with tokens or patches hidden.
CLEAN, MASKED = "clean", "masked"


@dataclass(frozen=True)
class Mean:
    """A mean over some items of a batch, and how many these are.

    The means of all parts of a batch, over accumulation steps and processes, add up to that of the whole batch when
    each is weighted by its share of the items.

    Args:
        value: The mean.
        count: What it is a mean over: examples, tokens, pairs of tokens; constant factors such as widths left out.
        parts: What it is made of, for the log; by default the mean itself under the term's own name.
    """

    value: Tensor
    count: int
    parts: dict[str, Tensor] = field(default_factory=dict)

    @property
    def sum(self) -> Tensor:
        """The sum over the items."""
        return self.value * self.count


@dataclass(frozen=True)
class Models:
    """The models that terms compare.

    Args:
        student: The model that is trained.
        teacher: The model it learns from; None where no term has one.
        blocks: Blocks of the student and of the teacher to compare where a term names none.
        items: What the task's own loss is a mean over; None for labelled tokens or examples.
        variants: Which inputs the method prepares for them, besides those they are given.
    """

    student: Anatomy
    teacher: Anatomy | None = None
    blocks: tuple[tuple[int, int], ...] = ()
    items: Callable[[Mapping[str, Any]], int] | None = None
    variants: tuple[str, ...] = (CLEAN,)

    @property
    def causal(self) -> bool:
        """Whether a token sees only itself and those before it."""
        return self.student.family.causal

    @property
    def pair(self) -> tuple[Anatomy, Anatomy]:
        """Teacher and student."""
        assert self.teacher is not None
        return self.teacher, self.student

    def match(self, block: int) -> int:
        """The teacher's block that a student's is compared with: evenly spaced, the last with the last."""
        teacher, student = (len(anatomy.blocks) for anatomy in self.pair)
        return max(0, round((block + 1) * teacher / student) - 1)


class Term(ABC):
    """One named part of an objective.

    A class registers under its name in `slimformer.registry.TERMS`, and an objective is written
    `name[options]:weight`. Classes may be defined anywhere; `TERMS.add` or the entry point group `slimformer.terms`
    makes them known.

    Args:
        models: Teacher and student.
        options: What was written in brackets, checked.

    Example:
        >>> class Norms(Term):
        ...     part = "norms"
        ...
        ...     def student_request(self):
        ...         return Request.of((), (), "last_hidden")
        ...
        ...     teacher_request = student_request
        ...
        ...     def compare(self, teacher, student, inputs):
        ...         apart = teacher["last_hidden"].norm(dim=-1) - student["last_hidden"].norm(dim=-1)
        ...         return self.mean(apart.square().mean(), inputs)
        >>> TERMS.add("norms", Norms, "length of the last hidden states")
    """

    class Options(Config):
        """What may stand in brackets; none by default."""

    #: The option that values without a name belong to, such as `layers` in `hidden[0,2]`.
    positional: ClassVar[str | None] = None
    #: What the loss is called in the log.
    part: ClassVar[str] = ""
    #: Which inputs both models see: `clean`, or a variant that the method prepares, such as `masked`.
    variant: str = CLEAN
    #: Who teaches: `teacher`, or another source that the method offers; None for nobody.
    source: ClassVar[str | None] = "teacher"
    #: Whether the teacher has to have a head.
    headed: ClassVar[bool] = False
    #: Whether attention heads are compared one by one, so that both models need as many.
    head_by_head: ClassVar[bool] = False
    #: Whether the batch has to have labels.
    labelled: ClassVar[bool] = False
    #: Of two stages, the one the term belongs to.
    stage: ClassVar[Literal["layers", "predictions"]] = "layers"

    def __init__(self, models: Models, options: Any) -> None:
        self.models = models
        self.options = options
        self.check()

    @classmethod
    def of(cls, models: Models, **options: Any) -> Self:
        """A term with options given by name."""
        return cls(models, cls.Options.make(options))

    def check(self) -> None:  # noqa: B027 (most terms refuse nothing)
        """Refuse models that cannot be compared, before any work."""

    @abstractmethod
    def student_request(self) -> Request:
        """What to keep of the student's forward."""

    def teacher_request(self) -> Request:
        """What to keep of the teacher's forward."""
        return Request()

    def maps(self) -> dict[str, nn.Module]:
        """Modules that are trained along with the student and left behind afterwards."""
        return {}

    def derive(self, activations: Activations, inputs: Mapping[str, Any], maps: Any) -> Activations:
        """What these modules compute from the student's activations; takes their place for this term.

        Runs inside the student's forward, so that mixed precision and distributed training treat it as part of it.
        """
        return {}

    def count(self, inputs: Mapping[str, Any]) -> int:
        """How many items of a batch the loss is a mean over; known before anything is computed."""
        return count_examples(inputs)

    @abstractmethod
    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """The loss of a batch: a mean and what it is a mean over."""

    def mean(self, value: Tensor, inputs: Mapping[str, Any], parts: dict[str, Tensor] | None = None) -> Mean:
        """A loss of this batch."""
        return Mean(value, self.count(inputs), {self.part: value} if parts is None else parts)


def split_names(value: Any) -> Any:
    """Accept one text with commas and numbers as well as a list."""
    if value is None:
        return None
    values = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else list(value)
    return tuple(str(each).strip() for each in values)


Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]


class BlockOptions(Config):
    """Which blocks are compared."""

    layers: Names | None = Field(
        None, description="Blocks of the student: `all`, `last`, `every-2`, numbers; a teacher's are spaced evenly."
    )


class BlockTerm(Term):
    """A term over blocks of the student and the teacher's blocks that go with them."""

    class Options(BlockOptions):
        """Which blocks are compared."""

    positional = "layers"
    #: What is recorded of each block.
    names: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:
        """Turn names of blocks into numbers."""
        self.pairs = block_pairs(self.options.layers, self.models)

    def student_request(self) -> Request:
        """The same of every block of the student."""
        return Request.of([student for student, _ in self.pairs], self.names)

    def teacher_request(self) -> Request:
        """The same of every block of the teacher."""
        return Request.of([teacher for _, teacher in self.pairs], self.names)


def block_pairs(layers: Sequence[str] | None, models: Models) -> tuple[tuple[int, int], ...]:
    """Blocks of the student, each with the teacher's block it is compared with."""
    if layers is None:
        return models.blocks
    count = len(models.student.blocks)
    chosen: set[int] = set()
    for name in layers:
        every = name.removeprefix("every-")
        if name == "all":
            chosen |= set(range(count))
        elif every != name and every.isdecimal() and int(every) > 0:
            chosen |= {block for block in range(count) if (count - 1 - block) % int(every) == 0}
        elif name == "last":
            chosen.add(count - 1)
        elif name.removeprefix("-").isdecimal():
            if not -count <= int(name) < count:
                raise ConfigError(f"there is no block {name}; the student has {count} blocks, 0 to {count - 1}")
            chosen.add(int(name) % count)
        else:
            raise ConfigError(f"`{name}` names no block; give `all`, `last`, `every-2` or numbers from 0")
    return tuple((block, models.match(block)) for block in sorted(chosen))


def check_heads(name: str, pairs: Sequence[tuple[int, int]], models: Models) -> None:
    """Refuse blocks whose attention heads cannot be compared one by one."""
    teacher, student = models.pair
    for block, other in pairs:
        ours, theirs = student.blocks[block].heads, teacher.blocks[other].heads
        if ours != theirs:
            raise ConfigError(
                f"`{name}` compares attention heads one by one, and the student has {ours} where the teacher has "
                f"{theirs}; give `--heads {theirs}`, or learn `relations`"
            )


def token_mask(inputs: Mapping[str, Any]) -> Tensor | None:
    """Which tokens count: [batch, length], the choices of an example one after the other; None for all."""
    mask: Tensor | None = inputs.get("attention_mask")
    return mask.flatten(0, 1) if mask is not None and mask.dim() == 3 else mask


def count_examples(inputs: Mapping[str, Any]) -> int:
    """Examples of a batch."""
    return len(next(iter(inputs.values())))


def count_tokens(inputs: Mapping[str, Any], padding: bool = False) -> int:
    """Tokens of a batch; of inputs that are all of one size, examples."""
    mask: Tensor | None = inputs.get("attention_mask")
    if mask is None:
        return count_examples(inputs)
    return mask.numel() if padding else int(mask.sum())
