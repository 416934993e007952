"""Language modelling beside what is learned from a teacher: tokens under a mask, or the next token."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from slimformer.errors import ConfigError
from slimformer.models import IGNORED
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.term import Mean, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.anatomy import Anatomy, Matrix
    from slimformer.objectives.recording import Activations


class TiedHead(nn.Module):
    """Logits over the vocabulary from hidden states, by the word embedding of the model itself.

    Args:
        hidden: Width of the hidden states.
        embedding: Width of the word embedding.
        vocabulary: How many tokens there are.
        transform: Whether a dense layer, GELU and a norm come first, as in BERT's head.
    """

    def __init__(self, hidden: int, embedding: int, vocabulary: int, *, transform: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, embedding) if transform or hidden != embedding else None
        self.norm = nn.LayerNorm(embedding) if transform else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if transform else None
        if self.dense is not None:
            nn.init.normal_(self.dense.weight, std=0.02)
            nn.init.zeros_(self.dense.bias)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """[tokens, hidden] → [tokens, vocabulary]."""
        if self.dense is not None:
            states = self.dense(states)
        if self.norm is not None:
            states = self.norm(functional.gelu(states))
        return functional.linear(states, table, self.bias)


class _LanguageModelling(Term):
    """Cross-entropy of some tokens, a mean over them; the student's own head if it has one, else a tied one."""

    stage = "predictions"
    source = None

    def check(self) -> None:
        """Find the head, and refuse what does not read text."""
        student = self.models.student
        table = student.word_embedding
        if table is None:
            raise ConfigError(f"`{self.part}` predicts tokens, and `{student.family.name}` sees images; leave it out")
        self.table: Matrix = table
        self.own_head = has_language_head(student)

    def student_request(self) -> Request:
        """Logits of its head, or what a head reads."""
        return Request(outputs=frozenset({"predictions" if self.own_head else "last_hidden"}))

    def maps(self) -> dict[str, nn.Module]:
        """A head tied to the word embedding, unless the student has one."""
        if self.own_head:
            return {}
        tokens, width = self.table.shape
        return {"head": TiedHead(self.models.student.hidden, width, tokens, transform=not self.models.causal)}

    def derive(self, activations: Activations, inputs: Mapping[str, Any], maps: Any) -> Activations:
        """Logits of the tokens that are predicted."""
        if self.own_head:
            return {}
        _, chosen = self.targets(inputs)
        states = activations["last_hidden"][:, : chosen.shape[1]][chosen]
        table = cast("Tensor", self.table.module.weight)
        return {"token_logits": maps["head"](states, table)}

    def count(self, inputs: Mapping[str, Any]) -> int:
        """Tokens that are predicted."""
        return int(self.targets(inputs)[1].sum())

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Cross-entropy of the tokens."""
        labels, chosen = self.targets(inputs)
        logits = student["logits"][:, : chosen.shape[1]][chosen] if self.own_head else student["token_logits"]
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = functional.cross_entropy(precise, labels[chosen], reduction="sum")
        return self.mean(total / max(1, len(logits)), inputs)

    @abstractmethod
    def targets(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Tokens to predict at each position, and at which positions they are: [batch, length] each."""


class MaskedTokens(_LanguageModelling):
    """Masked language modelling on a masked copy of the input (arXiv 1810.04805)."""

    part = "mlm"
    variant = "masked"

    def check(self) -> None:
        """Refuse decoders."""
        super().check()
        if self.models.causal:
            raise ConfigError(
                f"`mlm` predicts tokens from both sides, and `{self.models.student.family.name}` sees only the left; "
                "use `clm`"
            )

    def targets(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The tokens under the masks."""
        labels: Tensor = inputs["labels"]
        return labels, labels != IGNORED


class NextTokens(_LanguageModelling):
    """Causal language modelling: each token from those before it."""

    part = "clm"

    def check(self) -> None:
        """Refuse encoders."""
        super().check()
        if not self.models.causal:
            raise ConfigError(
                f"`clm` predicts the next token, and `{self.models.student.family.name}` has already seen it; use `mlm`"
            )

    def targets(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The tokens after each position, where neither is padding."""
        tokens, mask = inputs["input_ids"], inputs.get("attention_mask")
        counted = torch.ones_like(tokens) if mask is None else mask
        return tokens[:, 1:], (counted[:, 1:] * counted[:, :-1]).bool()


def has_language_head(anatomy: Anatomy) -> bool:
    """Whether a model has a head over its vocabulary."""
    name = type(anatomy.model).__name__
    return anatomy.model is not anatomy.base and any(each in name for each in ("MaskedLM", "CausalLM", "LMHead"))
