"""Self-attention relations of one block: MiniLMv2 and its predecessor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from slimformer.config import Config
from slimformer.objectives.losses.attention import attention_map_loss
from slimformer.objectives.losses.relations import check_relation_heads, relation_loss
from slimformer.objectives.recording import Request
from slimformer.objectives.spec import ALL_PAIRS
from slimformer.objectives.terms.term import Mean, Names, Term, check_heads, split_names, token_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.anatomy import Anatomy
    from slimformer.objectives.recording import Activations

#: Relation heads of the paper, for teachers below and from this width.
RELATION_HEADS, LARGE_RELATION_HEADS, LARGE = 48, 64, 1024


def _relations(value: Any) -> Any:
    names = split_names(value)
    return ALL_PAIRS if names == ("all",) else names


class _OneBlock(Term):
    """A term on one block of the teacher and the student's last one."""

    def check(self) -> None:
        """The blocks, which the method chooses."""
        self.block, self.teacher_block = self.models.blocks[-1]

    def _of(self, activations: Activations, block: int, names: tuple[str, ...]) -> Activations:
        return {name: activations[f"{block}.{name}"] for name in names}


class Relations(_OneBlock):
    """MiniLMv2: how queries, keys and values of one block relate to each other (arXiv 2012.15828, equations 5 to 8).

    A mean over texts. Widths may differ, as long as the relation heads divide all of them.
    """

    class Options(Config):
        """Which relations, and how finely they are cut."""

        pairs: Annotated[Names, BeforeValidator(_relations)] = Field(
            ("qq", "kk", "vv"), description="Which relations: two of the letters q, k, v each; `all` for all nine."
        )
        heads: int | None = Field(
            None, description="Relation heads; by default 48, or 64 for large teachers, or the next fewer that fit."
        )
        weights: Annotated[tuple[float, ...] | None, BeforeValidator(split_names)] = Field(
            None, description="Weight of each relation; 1 unless given."
        )

        @model_validator(mode="after")
        def _consistent(self) -> Self:
            for pair in self.pairs:
                if pair not in ALL_PAIRS:
                    raise ValueError(f"there is no relation `{pair}`; choose from {', '.join(ALL_PAIRS)}, or `all`")
            if self.weights is not None and len(self.weights) != len(self.pairs):
                raise ValueError(
                    f"{len(self.pairs)} relations and {len(self.weights)} weights; give one weight for each"
                )
            return self

    positional = "pairs"

    def check(self) -> None:
        """Find the relation heads, and refuse a number that does not divide the widths."""
        super().check()
        self.names = tuple(sorted({name for pair in self.options.pairs for name in pair}))
        self.heads = self.options.heads or usual_relation_heads(*self.models.pair)
        teacher, student = map(projection_widths, self.models.pair)
        check_relation_heads(self.heads, [teacher[name] for name in self.names], [student[name] for name in self.names])

    def student_request(self) -> Request:
        """Queries, keys and values, as far as the pairs need them."""
        return Request.of([self.block], self.names)

    def teacher_request(self) -> Request:
        """The same."""
        return Request.of([self.teacher_block], self.names)

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Divergence of the relations."""
        total, parts = relation_loss(
            self._of(teacher, self.teacher_block, self.names),
            self._of(student, self.block, self.names),
            token_mask(inputs),
            self.heads,
            self.options.pairs,
            self.options.weights,
            self.models.causal,
        )
        return self.mean(total, inputs, parts)


class MapsAndValues(_OneBlock):
    """MiniLM: attention maps and the relation of values to values, head by head (arXiv 2002.10957).

    A mean over texts. Both models need the same number of heads.
    """

    head_by_head = True

    def check(self) -> None:
        """Refuse models with different heads."""
        super().check()
        check_heads("minilm-v1", [(self.block, self.teacher_block)], self.models)
        self.heads = self.models.pair[0].blocks[-1].key_value_heads

    def student_request(self) -> Request:
        """Scores and values."""
        return Request.of([self.block], ("scores", "v"))

    def teacher_request(self) -> Request:
        """The same."""
        return Request.of([self.teacher_block], ("scores", "v"))

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Divergence of the maps plus that of the value relation."""
        target = self._of(teacher, self.teacher_block, ("scores", "v"))
        output = self._of(student, self.block, ("scores", "v"))
        mask, causal = token_mask(inputs), self.models.causal
        maps = attention_map_loss(target["scores"], output["scores"], mask, causal=causal)
        values, _ = relation_loss(target, output, mask, self.heads, ("vv",), causal=causal)
        return self.mean(maps + values, inputs, {"map": maps, "vv": values})


def projection_widths(anatomy: Anatomy) -> dict[str, int]:
    """Widths of queries, keys and values, heads side by side."""
    block = anatomy.blocks[-1]
    return {"q": block.query.shape[0], "k": block.key.shape[0], "v": block.value.shape[0]}


def usual_relation_heads(teacher: Anatomy, student: Anatomy) -> int:
    """The paper's number of relation heads, or the next smaller that divides all projections of both models."""
    most = RELATION_HEADS if teacher.hidden < LARGE else LARGE_RELATION_HEADS
    common = math.gcd(*(width for anatomy in (teacher, student) for width in projection_widths(anatomy).values()))
    return max(number for number in range(1, most + 1) if common % number == 0)
