"""What embeddings of one batch learn from each other: the task's own loss where a model has no head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from slimformer.objectives.losses.contrastive import contrastive_loss, ranked_pairs_loss
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.pooled import Pooled
from slimformer.objectives.terms.term import Mean, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.objectives.recording import Activations


class EmbeddingTerm(Term):
    """A loss over the embeddings of a batch; no teacher."""

    class Options(Pooled.Options):
        """How an item becomes one vector, and how sharply vectors are told apart."""

        temperature: float = Field(0.05, gt=0, description="What cosines are divided by.")

    positional = "pooling"
    stage = "predictions"
    source = None
    labelled = True

    def check(self) -> None:
        """Name what is recorded."""
        self.name = f"pooled.{self.options.pooling}"

    def student_request(self) -> Request:
        """The embeddings."""
        return Request(outputs=frozenset({self.name}))


class Contrastive(EmbeddingTerm):
    """Items that belong together find each other among all of their batch; `labels` numbers what belongs together.

    A mean over the items that have their like in the batch. Those of other accumulation parts and processes are no
    negatives.
    """

    part = "contrastive"

    def count(self, inputs: Mapping[str, Any]) -> int:
        """Items that have their like in the batch."""
        groups = inputs["labels"]
        return max(1, int(((groups[:, None] == groups[None, :]).sum(-1) > 1).sum()))

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """The contrastive loss."""
        return self.mean(contrastive_loss(student[self.name], inputs["labels"], self.options.temperature), inputs)


class RankedPairs(EmbeddingTerm):
    """Pairs are as alike as people say: the first of every pair stands before every second, `labels` are scores."""

    part = "ranked_pairs"

    def count(self, inputs: Mapping[str, Any]) -> int:
        """Pairs."""
        return len(inputs["labels"]) // 2

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """The loss of their order."""
        first, second = student[self.name].chunk(2)
        scores = inputs["labels"][: len(first)]
        return self.mean(ranked_pairs_loss(first, second, scores, self.options.temperature), inputs)
