"""From a budget to a shape: the largest student of a ladder that keeps to it, the same one every time.

A rung of the ladder is a number of blocks and a width with the width's 48th to 64th part of blocks, as the paper's
students have (6 x 384, 12 x 768; arXiv 2012.15828). Where the word embedding would be more than half of such a student,
it is factorised, and wider embeddings stand between one rung and the next.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy, family_of
from slimformer.artifact.provenance import file_size, stored_tensors
from slimformer.errors import ConfigError
from slimformer.methods.distill.config import BUDGETS, SIZES, StudentShape
from slimformer.methods.distill.student import student_builder, student_config
from slimformer.registry import TERMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.methods.distill.config import DistillConfig

#: Attention heads of every student in the paper (arXiv 2012.15828, section 4.1), the least width of one by default,
#: and the most heads that a width has which twelve do not divide.
HEADS, HEAD_WIDTH, MOST_HEADS = 12, 16, 16
#: Widths of the ladder: so many times a power of two, 16 at least.
STEPS, LEAST_WIDTH = (4, 5, 6), 16
#: Widths of a student over its blocks, from deep to shallow.
DEEP, SHALLOW = 48, 64
#: The word embedding is factorised where it is a larger share of a student than that; it is then at least so many
#: times the hidden width, and a multiple of so many.
EMBEDDING_SHARE, LEAST_EMBEDDING, EMBEDDING_STEP = 0.5, 0.4, 8


@dataclass(frozen=True)
class Proposal:
    """A shape and what it costs.

    Args:
        shape: The shape, whole: layers, hidden, heads and feed-forward neurons are numbers.
        vocabulary: Rows of the word embedding; None for images.
        parameters: Weights in the student's file.
        bytes: Bytes of its file, model.safetensors.
        milliseconds: What one text took on this machine; None where that was not measured.
    """

    shape: StudentShape
    vocabulary: int | None
    parameters: int
    bytes: int
    milliseconds: float | None = None

    @classmethod
    def read(cls, summary: Mapping[str, Any]) -> Proposal:
        """One that was written down."""
        costs = {name: value for name, value in summary.items() if name not in StudentShape.model_fields}
        return cls(StudentShape.make({name: summary[name] for name in (*SIZES, "start")}), **costs)

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON types."""
        sizes = {name: getattr(self.shape, name) for name in (*SIZES, "start")}
        costs = {"vocabulary": self.vocabulary, "parameters": self.parameters, "bytes": self.bytes}
        return {**sizes, **costs, **({} if self.milliseconds is None else {"milliseconds": self.milliseconds})}

    def __str__(self) -> str:
        shape = self.shape
        embedding = "" if self.vocabulary is None else f", embedding {shape.embedding or shape.hidden}"
        words = "" if self.vocabulary is None else f", vocabulary {self.vocabulary:,}"
        time = "" if self.milliseconds is None else f", {self.milliseconds:.2f} ms"
        return (
            f"student: layers {shape.layers}, hidden {shape.hidden}, heads {shape.heads}, ffn {shape.ffn}"
            f"{embedding}{words}: {self.parameters:,} parameters, {self.bytes:,} bytes{time}"
        )


class Ladder:
    """Shapes of students, smallest first.

    Args:
        teacher: The teacher; its class and its config are looked at alone.
        fixed: What of the shape was given; the rest varies.
        heads: Attention heads that all have; None for what suits a width.
    """

    def __init__(self, teacher: PreTrainedModel, fixed: StudentShape, heads: int | None = None) -> None:
        self.teacher = teacher
        self.fixed = fixed
        self.heads = fixed.heads or heads
        self._known: dict[StudentShape, Proposal] = {}

    @property
    def parts(self) -> str:
        """The parts of the shape that were given, as a message names them."""
        sizes = {name: getattr(self.fixed, name) for name in SIZES}
        return ", ".join(f"`{name}` {size}" for name, size in sizes.items() if size is not None)

    @cached_property
    def bodies(self) -> tuple[StudentShape, ...]:
        """Shapes with different blocks, smallest first, without embeddings of their own."""
        bodies = []
        for hidden in self._widths():
            heads = self.heads or suitable_heads(hidden, self.teacher.config)
            if heads is not None and fits(hidden, heads, self.teacher.config):
                sizes = {"hidden": hidden, "heads": heads}
                bodies += [self.fixed.model_copy(update={**sizes, "layers": layers}) for layers in self._depths(hidden)]
        whole = [self.whole(body) for body in bodies]
        return tuple(body for body in whole if body != self.own or self.rungs(body))

    @cached_property
    def own(self) -> StudentShape:
        """The shape of the teacher itself."""
        return self.whole(self.fixed.model_copy(update=dict.fromkeys(SIZES)))

    def whole(self, shape: StudentShape) -> StudentShape:
        """A shape with a number in place of whatever it takes from the teacher."""
        config: Any = student_config(self.teacher.config, shape.model_copy(update={"embedding": None}))
        sizes = {
            "layers": config.num_hidden_layers,
            "hidden": config.hidden_size,
            "heads": config.num_attention_heads,
            "ffn": getattr(config, family_of(config.model_type).ffn_size),
        }
        return shape.model_copy(update=sizes)

    def rungs(self, body: StudentShape) -> list[StudentShape]:
        """The same blocks under embeddings of different widths, narrowest first; none of them is the teacher itself."""
        plain = [body] if body != self.own else []
        if self.fixed.embedding is not None or not self._factorises(body):
            return plain
        assert body.hidden is not None
        least = -(-int(body.hidden * LEAST_EMBEDDING * 1000) // (1000 * EMBEDDING_STEP)) * EMBEDDING_STEP
        own = min(getattr(self.teacher.config, "embedding_size", body.hidden), body.hidden)
        widths = range(least, own, EMBEDDING_STEP)
        return [*(body.model_copy(update={"embedding": width}) for width in widths), *plain]

    def propose(self, shape: StudentShape) -> Proposal:
        """What a student of a shape would cost, to the byte; nothing but its skeleton is built."""
        if shape not in self._known:
            with torch.device("meta"):
                skeleton = student_builder(self.teacher, shape)()
            tensors = stored_tensors(skeleton)
            words = Anatomy.of(skeleton).word_embedding
            self._known[shape] = Proposal(
                shape,
                None if words is None else words.shape[0],
                sum(tensor.numel() for tensor in tensors.values()),
                file_size(tensors),
            )
        return self._known[shape]

    def within(self, limits: Mapping[str, float]) -> tuple[StudentShape, ...]:
        """The bodies that keep to limits under their narrowest embeddings; costs rise, so that a few of them tell all.

        Args:
            limits: `parameters` or `bytes` → the most of them.
        """
        beyond = bisect_left(self.bodies, True, key=lambda body: self._exceeds(self.rungs(body)[0], limits))
        return self.bodies[:beyond]

    def widest(self, body: StudentShape, limits: Mapping[str, float]) -> StudentShape:
        """A body of `within` under the widest embeddings that keep to the limits."""
        rungs = self.rungs(body)
        return rungs[bisect_left(rungs, True, key=lambda rung: self._exceeds(rung, limits)) - 1]

    def _exceeds(self, shape: StudentShape, limits: Mapping[str, float]) -> bool:
        return any(getattr(self.propose(shape), what) > limit for what, limit in limits.items())

    def next_larger(self, shape: StudentShape) -> Proposal | None:
        """The rung above one; None above the last."""
        body = shape if self.fixed.embedding is not None else shape.model_copy(update={"embedding": None})
        rungs, number = self.rungs(body), self.bodies.index(body)
        above = [
            *rungs[rungs.index(shape) + 1 :][:1],
            *(self.rungs(each)[0] for each in self.bodies[number + 1 :][:1]),
        ]
        return min(map(self.propose, above), key=lambda each: each.bytes, default=None)

    def _factorises(self, body: StudentShape) -> bool:
        """Whether the word embedding would be too large a share of a student, and may be narrower."""
        family = family_of(self.teacher.config.model_type)
        if family.factorised is None or family.word_embedding is None:
            return False
        plain = self.propose(body)
        assert plain.vocabulary is not None
        assert body.hidden is not None
        width = min(getattr(self.teacher.config, "embedding_size", body.hidden), body.hidden)
        return plain.vocabulary * width > EMBEDDING_SHARE * plain.parameters

    def _widths(self) -> list[int]:
        most = int(self.teacher.config.hidden_size)
        if self.fixed.hidden is not None:
            return [self.fixed.hidden]
        least = max(LEAST_WIDTH, (self.fixed.embedding or 0) + 1)
        powers = range(most.bit_length())
        widths = sorted({step * 2**power for power in powers for step in STEPS if step * 2**power >= LEAST_WIDTH})
        if self.heads is not None:
            unit = 2 * self.heads  # rotary positions turn the dimensions of a head in pairs
            widths = sorted({-(-width // unit) * unit for width in widths})
        return [*(width for width in widths if least <= width < most), *([most] if least <= most else [])]

    def _depths(self, hidden: int) -> Sequence[int]:
        most = int(self.teacher.config.num_hidden_layers)
        if self.fixed.layers is not None:
            return [self.fixed.layers]
        if self.fixed.hidden is not None:
            return range(1, most + 1)
        shallow, deep = min(most, -(-hidden // SHALLOW)), min(most, -(-hidden // DEEP))
        return range(shallow, most + 1 if hidden == self.teacher.config.hidden_size else deep + 1)


def suitable_heads(hidden: int, teacher: PretrainedConfig) -> int | None:
    """Attention heads of a student of some width: the teacher's at its own, the paper's where they fit, else fewer."""
    own = int(teacher.num_attention_heads)
    if hidden == teacher.hidden_size:
        return own
    grouped = getattr(teacher, "num_key_value_heads", None) or own
    for heads in (HEADS, *range(MOST_HEADS, 0, -1)):
        wide = hidden >= heads * HEAD_WIDTH or heads * grouped == own  # one group of keys at least
        if wide and heads * grouped % own == 0 and fits(hidden, heads, teacher):
            return int(heads)
    return None


def fits(hidden: int, heads: int, teacher: PretrainedConfig) -> bool:
    """Whether heads divide a width, and their dimensions come in pairs, which rotary positions turn."""
    own = int(teacher.num_attention_heads) * (getattr(teacher, "head_dim", None) or 0)  # as `resize` has it
    width = own * hidden // (heads * teacher.hidden_size) if own else hidden // heads
    return hidden % heads == 0 and width % 2 == 0


def common_heads(config: DistillConfig, teacher: PretrainedConfig) -> int | None:
    """The number of heads that a student shares with its teacher whatever its width; None where it may have others."""
    head_by_head = any(TERMS.get(term.name).head_by_head for term in config.learned)
    return int(teacher.num_attention_heads) if head_by_head or config.start != "random" else None


def choose_shape(config: DistillConfig, teacher: PreTrainedModel, length: int | None) -> Proposal:
    """The largest student that keeps to the budgets of the settings.

    Args:
        config: The settings; what of a shape they give is kept.
        teacher: The teacher, with the vocabulary that the student is going to have.
        length: Tokens of the text whose time is taken; None for images.
    """
    fixed = StudentShape.make({name: getattr(config, name) for name in StudentShape.model_fields})
    ladder = Ladder(teacher, fixed, common_heads(config, teacher.config))
    limits = {what: limit for name, what in BUDGETS.items() if (limit := getattr(config, name)) is not None}
    if not ladder.bodies:
        raise ConfigError(f"no width of a student goes with {ladder.parts}; give other sizes")
    refuse_large(config, ladder)
    bodies = ladder.within(limits)
    if not bodies:
        smallest = ladder.propose(ladder.rungs(ladder.bodies[0])[0])
        needed = {name: getattr(smallest, what) for name, what in BUDGETS.items()}
        raise too_small(config, needed, words=smallest.vocabulary is not None)
    if config.max_ms is None:
        return ladder.propose(ladder.widest(bodies[-1], limits))
    from slimformer.methods.distill.timing import choose_by_time

    shape, milliseconds = choose_by_time(config, ladder, [ladder.widest(body, limits) for body in bodies], length)
    return replace(ladder.propose(shape), milliseconds=milliseconds)


def refuse_large(config: DistillConfig, ladder: Ladder) -> None:
    """Refuse a budget for which the teacher would do, unless something of the shape was given."""
    if ladder.parts:
        return
    own = ladder.propose(ladder.own)
    for name, what in BUDGETS.items():
        limit, needed = getattr(config, name), getattr(own, what)
        if limit is not None and limit >= needed:
            raise ConfigError(
                f"`{name}` is {limit:,}, and the teacher itself has {needed:,} {what} as a student; give less, or take "
                "the teacher as it is"
            )


def too_small(config: DistillConfig, needed: Mapping[str, float], *, words: bool = False) -> ConfigError:
    """The error for a budget in which there is no student.

    Args:
        config: The settings.
        needed: Name of a budget → what the smallest student takes.
        words: Whether students have a vocabulary that could be smaller.
    """
    name, least = next((name, least) for name, least in needed.items() if (getattr(config, name) or least) < least)
    helps = name in BUDGETS and words and not config.trim
    smaller = ", or drop word pieces that the corpus does not use with `--trim`" if helps else ""
    return ConfigError(
        f"`{name}` is {getattr(config, name):,}, and the smallest student takes {least:,}; give at least that{smaller}"
    )
