"""Language modelling, alone or beside what is learned from a teacher: tokens under a mask, or the next token."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from slimformer.errors import ConfigError
from slimformer.models import IGNORED
from slimformer.objectives.losses.counting import mean_over_texts
from slimformer.objectives.recording import LABELLED_LOGITS, Request
from slimformer.objectives.terms.term import CLEAN, MASKED, Mean, Term

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


class LanguageModelling(Term):
    """Cross-entropy of some tokens, a mean over them; the student's own head if it has one, else a tied one.

    Of tokens under a mask, the head is computed at their positions alone.
    """

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
        if not self.own_head:
            return Request(outputs=frozenset({"last_hidden"}))
        return Request(outputs=frozenset({LABELLED_LOGITS if self.variant == MASKED else "predictions"}))

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
        losses = self.token_losses(student, inputs)
        return self.mean(losses.sum() / max(1, len(losses)), inputs)

    def token_losses(self, student: Activations, inputs: Mapping[str, Any]) -> Tensor:
        """Cross-entropy of each token that is predicted, text by text: [tokens]."""
        labels, chosen = self.targets(inputs)
        if not self.own_head:
            logits = student["token_logits"]
        elif self.variant == MASKED:
            logits = student[LABELLED_LOGITS]
        else:
            logits = student["logits"][:, : chosen.shape[1]][chosen]
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return functional.cross_entropy(precise, labels[chosen], reduction="none")

    @abstractmethod
    def targets(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Tokens to predict at each position, and at which positions they are: [batch, length] each."""


class MaskedTokens(LanguageModelling):
    """Masked language modelling on a masked copy of the input (arXiv 1810.04805)."""

    part = "mlm"
    variant = MASKED

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
        return masked_tokens(inputs)


class NextTokens(LanguageModelling):
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
        return next_tokens(inputs)


class Reconstruction(LanguageModelling):
    """Masked auto-encoding: a mean over the hidden tokens of each text, then over texts (arXiv 2210.02871, section 3).

    A text with one hidden token counts as much as one with twenty. Decoders predict the next token instead.
    """

    part = "reconstruction"

    def check(self) -> None:
        """Encoders look at the masked copy."""
        super().check()
        self.variant = CLEAN if self.models.causal else MASKED

    def targets(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The tokens under the masks, or those after each position."""
        return next_tokens(inputs) if self.models.causal else masked_tokens(inputs)

    def count(self, inputs: Mapping[str, Any]) -> int:
        """Texts with a token to predict."""
        return int(self.targets(inputs)[1].any(dim=1).sum())

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Cross-entropy, text by text."""
        return self.mean(mean_over_texts(self.token_losses(student, inputs), self.targets(inputs)[1]), inputs)


def masked_tokens(inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Tokens and which of them are under a mask: [batch, length] each."""
    labels: Tensor = inputs["labels"]
    return labels, labels != IGNORED


def next_tokens(inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The token after each position, and where neither is padding: [batch, length - 1] each."""
    tokens, mask = inputs["input_ids"], inputs.get("attention_mask")
    counted = torch.ones_like(tokens) if mask is None else mask
    return tokens[:, 1:], (counted[:, 1:] * counted[:, :-1]).bool()


def has_language_head(anatomy: Anatomy) -> bool:
    """Whether a model has a head over its vocabulary."""
    name = type(anatomy.model).__name__
    return anatomy.model is not anatomy.base and any(each in name for each in ("MaskedLM", "CausalLM", "LMHead"))
