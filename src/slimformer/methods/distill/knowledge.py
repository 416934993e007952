"""What a student learns from its teacher: one class for each kind of knowledge, all of one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from slimformer.errors import ConfigError
from slimformer.objectives import (
    attention_map_loss,
    hidden_state_loss,
    relation_loss,
    soft_label_loss,
)
from slimformer.objectives.relations import check_relation_heads
from slimformer.train import Loss

if TYPE_CHECKING:
    from slimformer.anatomy import Anatomy

Seen = dict[str, Tensor]


class Knowledge(Protocol):
    """Something both models compute, and how far apart they are in it."""

    @property
    def names(self) -> tuple[str, ...]:
        """What has to be seen of both models."""
        ...

    def maps(self, teacher: Anatomy, student: Anatomy) -> dict[str, nn.Module]:
        """What the student's side goes through to be compared; refuses models that cannot be."""
        ...

    def compare(self, teacher: Seen, student: Seen, mask: Tensor | None) -> Loss:
        """The loss of a batch: a mean over its examples."""
        ...


def projection_widths(anatomy: Anatomy) -> dict[str, int]:
    """Widths of queries, keys and values, heads side by side."""
    block = anatomy.blocks[-1]
    return {"q": block.query.shape[0], "k": block.key.shape[0], "v": block.value.shape[0]}


@dataclass(frozen=True)
class Relations:
    """MiniLMv2: self-attention relations of one block (arXiv 2012.15828)."""

    heads: int
    pairs: tuple[str, ...]
    weights: tuple[float, ...] | None
    causal: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Queries, keys and values, as far as the pairs need them."""
        return tuple(sorted({name for pair in self.pairs for name in pair}))

    def maps(self, teacher: Anatomy, student: Anatomy) -> dict[str, nn.Module]:
        """Nothing: relations are of one shape whatever the widths, as long as the heads divide these."""
        theirs, ours = projection_widths(teacher), projection_widths(student)
        check_relation_heads(self.heads, [theirs[name] for name in self.names], [ours[name] for name in self.names])
        return {}

    def compare(self, teacher: Seen, student: Seen, mask: Tensor | None) -> Loss:
        """Divergence of the relations."""
        total, parts = relation_loss(teacher, student, mask, self.heads, self.pairs, self.weights, self.causal)
        return Loss(total, parts)


@dataclass(frozen=True)
class MapsAndValues:
    """MiniLM: attention maps and the relation of values to values, head by head (arXiv 2002.10957)."""

    heads: int
    causal: bool
    names: ClassVar[tuple[str, ...]] = ("scores", "v")

    def maps(self, teacher: Anatomy, student: Anatomy) -> dict[str, nn.Module]:
        """Nothing, but both need the same heads."""
        ours, theirs = student.blocks[-1].heads, teacher.blocks[-1].heads
        if ours != theirs:
            raise ConfigError(
                f"`minilm-v1` compares attention heads one by one, and the student has {ours} where the teacher has "
                f"{theirs}; give `--heads {theirs}`, or learn `relations`"
            )
        return {}

    def compare(self, teacher: Seen, student: Seen, mask: Tensor | None) -> Loss:
        """Divergence of the maps plus that of the value relation."""
        maps = attention_map_loss(teacher["scores"], student["scores"], mask, causal=self.causal)
        values, _ = relation_loss(teacher, student, mask, self.heads, ("vv",), causal=self.causal)
        return Loss(maps + values, {"map": maps, "vv": values})


@dataclass(frozen=True)
class HiddenStates:
    """Outputs of one block, through a learned matrix where the widths differ."""

    names: ClassVar[tuple[str, ...]] = ("output",)

    def maps(self, teacher: Anatomy, student: Anatomy) -> dict[str, nn.Module]:
        """A matrix to the teacher's width; it is not part of the student."""
        if teacher.hidden == student.hidden:
            return {}
        return {"output": nn.Linear(student.hidden, teacher.hidden)}

    def compare(self, teacher: Seen, student: Seen, mask: Tensor | None) -> Loss:
        """Mean squared difference."""
        total = hidden_state_loss(teacher["output"], student["output"], mask)
        return Loss(total, {"hidden": total})


@dataclass(frozen=True)
class SoftLabels:
    """What the teacher's head says, of a text or of each token."""

    temperature: float
    names: ClassVar[tuple[str, ...]] = ("logits",)

    def maps(self, teacher: Anatomy, student: Anatomy) -> dict[str, nn.Module]:
        """Nothing: the student has a head of its own."""
        return {}

    def compare(self, teacher: Seen, student: Seen, mask: Tensor | None) -> Loss:
        """Cross-entropy with the teacher's predictions; regression compares the numbers."""
        theirs, ours = teacher["logits"], student["logits"]
        if ours.dim() > 2 and mask is not None:
            # A mean over each text's tokens and then over texts, as every other loss here.
            weights = (mask / mask.sum(1, keepdim=True).clamp(min=1) / len(mask)).to(ours.dtype)
            wanted = (theirs / self.temperature).softmax(-1)
            losses = -(wanted * (ours / self.temperature).log_softmax(-1)).sum(-1)
            total = (losses.masked_fill(~mask.bool(), 0) * weights).sum()
        elif ours.shape[-1] == 1:
            total = hidden_state_loss(theirs, ours)
        else:
            total = soft_label_loss(theirs, ours, self.temperature)
        return Loss(total, {"labels": total})


class Isometry(nn.Module):
    """A learned map to a wider space that keeps every inner product: a matrix with orthonormal columns."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.free = nn.Parameter(torch.randn(wide, narrow))

    def forward(self, vectors: Tensor) -> Tensor:
        """[…, narrow] → […, wide]."""
        columns, triangle = torch.linalg.qr(self.free.float())
        signs = triangle.diagonal().sign()  # without them a column could turn over between two steps
        mapped: Tensor = vectors @ (columns * signs).T.to(vectors.dtype)
        return mapped


@dataclass(frozen=True)
class Pooled:
    """Sentence embeddings, so that the student can stand in for its teacher without fine-tuning.

    Where the widths differ, the narrower embedding goes through a learned matrix with orthonormal columns. Such a
    matrix keeps every inner product: cosine similarities of the student's own embeddings are those of the mapped
    ones. So the matrix is left behind after training and nothing has to be carried along with the student.
    """

    names: ClassVar[tuple[str, ...]] = ("pooled",)

    def maps(self, teacher: Anatomy, student: Anatomy) -> dict[str, nn.Module]:
        """A matrix with orthonormal columns to the teacher's width."""
        if student.hidden > teacher.hidden:
            raise ConfigError(
                f"the student is {student.hidden} wide and the teacher {teacher.hidden}; sentence embeddings are "
                "learned by students at most as wide as their teacher"
            )
        if student.hidden == teacher.hidden:
            return {}
        return {"pooled": Isometry(student.hidden, teacher.hidden)}

    def compare(self, teacher: Seen, student: Seen, mask: Tensor | None) -> Loss:
        """One minus the cosine."""
        total = (1 - functional.cosine_similarity(teacher["pooled"], student["pooled"], dim=-1)).mean()
        return Loss(total, {"pooled": total})
