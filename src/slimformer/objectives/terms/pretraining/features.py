"""Features of the whole input: what self-distillation for further pre-training learns (arXiv 2210.02871)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field
from torch import nn

from slimformer.config import Config
from slimformer.objectives.losses.features import Positions, Reduction, feature_loss
from slimformer.objectives.recording import FEATURES, Request
from slimformer.objectives.terms.term import Mean, Term, token_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.objectives.recording import Activations


class UnmaskedFeatures(Term):
    """Squared difference of the last hidden states on the unmasked input, a mean over examples.

    A masked autoencoder is compared by what its encoder computes of all patches. Where the widths differ, the student's
    features go through a learned matrix that is left behind.
    """

    class Options(Config):
        """Which positions are compared, and how their differences are put together."""

        positions: Positions = Field(
            "all", description="Compare `all` positions, their `mean`, or the `first`, such as [CLS]."
        )
        reduction: Reduction = Field(
            "mean", description="Over positions and features: `mean`, or `sum` as in arXiv 2210.02871."
        )

    positional = "positions"
    part = "features"

    def student_request(self) -> Request:
        """The features."""
        return Request(outputs=frozenset({FEATURES}))

    def teacher_request(self) -> Request:
        """The same."""
        return self.student_request()

    def maps(self) -> dict[str, nn.Module]:
        """A matrix to the teacher's width; it is not part of the student."""
        teacher, student = self.models.pair
        return {} if teacher.hidden == student.hidden else {FEATURES: nn.Linear(student.hidden, teacher.hidden)}

    def derive(self, activations: Activations, inputs: Mapping[str, Any], maps: Any) -> Activations:
        """The student's features in the teacher's width."""
        return {FEATURES: maps[FEATURES](activations[FEATURES])} if FEATURES in maps else {}

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Squared difference of the features."""
        options = self.options
        loss = feature_loss(
            teacher[FEATURES], student[FEATURES], token_mask(inputs), options.positions, options.reduction
        )
        return self.mean(loss, inputs)
