"""Sentence embeddings, so that a student can stand in for its teacher without fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from slimformer.config import Config
from slimformer.errors import ConfigError
from slimformer.models.sentence import FLAGS
from slimformer.objectives.losses.cosine import cosine_loss
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.term import Mean, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.objectives.recording import Activations


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


class Pooled(Term):
    """One minus the cosine of the sentence embeddings, a mean over texts.

    Where the widths differ, the narrower embedding goes through a learned matrix with orthonormal columns. Such a
    matrix keeps every inner product: cosine similarities of the student's own embeddings are those of the mapped
    ones. So the matrix is left behind after training and nothing has to be carried along with the student.
    """

    class Options(Config):
        """How a text becomes one vector."""

        pooling: str = Field("mean", description="Ways of pooling, joined by +: mean, cls, max, lasttoken, …")

        @field_validator("pooling")
        @classmethod
        def _known(cls, pooling: str) -> str:
            for way in pooling.split("+"):
                if way not in FLAGS:
                    raise ValueError(f"there is no pooling `{way}`; known: {', '.join(FLAGS)}")
            return pooling

    positional = "pooling"
    part = "pooled"

    def check(self) -> None:
        """Refuse a student wider than its teacher."""
        teacher, student = self.models.pair
        self.name = f"pooled.{self.options.pooling}"
        if student.hidden > teacher.hidden:
            raise ConfigError(
                f"the student is {student.hidden} wide and the teacher {teacher.hidden}; sentence embeddings are "
                "learned by students at most as wide as their teacher"
            )

    def student_request(self) -> Request:
        """The embedding."""
        return Request(outputs=frozenset({self.name}))

    def teacher_request(self) -> Request:
        """The same."""
        return self.student_request()

    def maps(self) -> dict[str, nn.Module]:
        """A matrix with orthonormal columns to the teacher's width."""
        teacher, student = self.models.pair
        return {} if student.hidden == teacher.hidden else {"isometry": Isometry(student.hidden, teacher.hidden)}

    def derive(self, activations: Activations, inputs: Mapping[str, Any], maps: Any) -> Activations:
        """The student's embedding in the teacher's width."""
        if "isometry" not in maps:
            return {}
        ways = self.options.pooling.count("+") + 1
        # The vectors of several ways lie side by side; each is mapped by itself.
        mapped: Tensor = maps["isometry"](activations[self.name].unflatten(-1, (ways, -1)))
        return {self.name: mapped.flatten(-2)}

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """One minus the cosine; a student that shows only its first dimensions learns those of the teacher."""
        ways = self.options.pooling.count("+") + 1
        target, output = (each[self.name].unflatten(-1, (ways, -1)) for each in (teacher, student))
        return self.mean(cosine_loss(target[..., : output.shape[-1]].flatten(-2), output.flatten(-2)), inputs)
