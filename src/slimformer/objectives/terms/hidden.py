"""Hidden states, layer by layer: outputs of blocks, embeddings, outputs of the attention sub-layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from slimformer.objectives.losses.hidden import hidden_state_loss
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.term import BlockOptions, BlockTerm, Mean, block_pairs, count_tokens, token_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.objectives.recording import Activations

EMBEDDINGS = "embeddings"


class _SquaredDifference(BlockTerm):
    """Squared differences of [batch, length, hidden], summed over blocks, a mean over tokens and features.

    Where the widths differ, the student's goes through a learned matrix that is left behind.
    """

    class Options(BlockOptions):
        """Which blocks, and what counts."""

        padding: bool = Field(False, description="Count padding too, as the code of arXiv 2211.11014 does.")

    embeddings: bool = False

    def _keys(self) -> list[tuple[str, str, str]]:
        """Of everything that is compared: the name of its map, and what it is called of student and of teacher."""
        (name,) = self.names
        blocks = [(f"block{student}", f"{student}.{name}", f"{teacher}.{name}") for student, teacher in self.pairs]
        return [*([(EMBEDDINGS, EMBEDDINGS, EMBEDDINGS)] if self.embeddings else []), *blocks]

    def maps(self) -> dict[str, nn.Module]:
        """A matrix to the teacher's width for each of them; it is not part of the student."""
        teacher, student = self.models.pair
        if teacher.hidden == student.hidden:
            return {}
        return {key: nn.Linear(student.hidden, teacher.hidden) for key, _, _ in self._keys()}

    def derive(self, activations: Activations, inputs: Mapping[str, Any], maps: Any) -> Activations:
        """What the student computed, in the teacher's width."""
        return {name: maps[key](activations[name]) for key, name, _ in self._keys() if key in maps}

    def count(self, inputs: Mapping[str, Any]) -> int:
        """Tokens."""
        return count_tokens(inputs, self.options.padding)

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Mean squared differences, summed over what is compared."""
        mask = None if self.options.padding else token_mask(inputs)
        losses = [hidden_state_loss(teacher[target], student[output], mask) for _, output, target in self._keys()]
        if not self.embeddings:
            return self.mean(torch.stack(losses).sum(), inputs)
        first, *blocks = losses
        return self.mean(first + torch.stack(blocks).sum() if blocks else first, inputs)


class HiddenStates(_SquaredDifference):
    """Outputs of blocks, and with `embeddings` the input of the first one (arXiv 2009.12812, 1909.10351)."""

    part = "hidden"
    names: ClassVar[tuple[str, ...]] = ("output",)

    def check(self) -> None:
        """Take the embeddings apart from the blocks."""
        layers = self.options.layers
        self.embeddings = layers is not None and EMBEDDINGS in layers
        blocks = None if layers is None else [name for name in layers if name != EMBEDDINGS]
        self.pairs = block_pairs(blocks, self.models)

    def student_request(self) -> Request:
        """Outputs of blocks, and the embeddings."""
        return super().student_request() | Request(embeddings=self.embeddings)

    def teacher_request(self) -> Request:
        """The same."""
        return super().teacher_request() | Request(embeddings=self.embeddings)


class AttentionOutputs(_SquaredDifference):
    """The attention sub-layer's output `Y = LayerNorm(X + MHA(X))` (arXiv 2211.11014, section 4)."""

    part = "output"
    names: ClassVar[tuple[str, ...]] = ("attention_output",)


class MultiHeadAttention(_SquaredDifference):
    """The multi-head attention's output before the residual sum, MHA(X) (ablation of arXiv 2211.11014)."""

    part = "mha"
    names: ClassVar[tuple[str, ...]] = ("mha",)
