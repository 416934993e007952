"""Predictions that stay as they are when the input moves a little: R3F (arXiv 2008.03156)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from slimformer.anatomy import Anatomy
from slimformer.config import Config, PositiveNumber
from slimformer.errors import ConfigError
from slimformer.objectives.losses.logits import symmetric_kl_loss
from slimformer.objectives.recording import Recorder, Request
from slimformer.objectives.terms.term import Mean, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from slimformer.objectives.recording import Activations

#: The source that `r3f` compares with: the model itself on noised embeddings.
NOISED = "noised"


class R3F(Term):
    """Symmetric KL between what the head says of an input and of the same input with noise, a mean over examples.

    Gradients flow through both forwards, each with dropout of its own, as in the published code.
    """

    class Options(Config):
        """The noise."""

        noise: PositiveNumber = Field(
            1e-5, description="Its size: the bound of uniform noise, the deviation of normal."
        )
        distribution: Literal["uniform", "normal"] = Field("uniform", description="Its distribution.")

    positional = "noise"
    part = "r3f"
    stage = "predictions"
    source = NOISED

    def check(self) -> None:
        """Refuse a head that does not choose between classes."""
        student = self.models.student
        head, problem = type(student.model).__name__, getattr(student.config, "problem_type", None)
        chooses = head.endswith(("SequenceClassification", "ImageClassification", "WithTeacher"))
        if not chooses or problem in ("regression", "multi_label_classification"):
            raise ConfigError(
                f"`r3f` compares the probabilities of classes, which a `{head}` with problem type `{problem}` has not; "
                "leave it out"
            )

    def student_request(self) -> Request:
        """Outputs of the head."""
        return Request(outputs=frozenset({"predictions"}))

    def teacher_request(self) -> Request:
        """The same of the noised forward."""
        return self.student_request()

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """How far the two predictions are from each other."""
        return self.mean(symmetric_kl_loss(student["logits"], teacher["logits"]), inputs)


class NoisedStudent:
    """The model itself with noise on its word or patch embeddings, as a source that terms have gradients through.

    The embeddings are detached: what makes them learns from the clean forward alone. The noise is a function of seed,
    step, part of the batch and process, so that a run that is resumed repeats it.

    Args:
        model: The model, without wrappers.
        options: The noise.
        seed: Seed of the run.
        process: Number of the process, whose examples are others than those of the first.
    """

    def __init__(self, model: nn.Module, options: R3F.Options, seed: int, process: int = 0) -> None:
        self.model = model
        self.options = options
        self.seed = seed
        self.process = process
        self.step = self.part = 0
        anatomy = Anatomy.of(model)
        word = anatomy.word_embedding
        self.embedding = anatomy.patch_embedding if word is None else word.module
        if self.embedding is None:
            raise ConfigError(f"a `{type(model).__name__}` has neither word nor patch embeddings to put noise on")
        self._recorders: dict[tuple[str, ...], Recorder] = {}

    def begin(self, step: int) -> None:
        """Let the parts of a step begin."""
        self.step, self.part = step, 0

    def __call__(self, model: nn.Module, inputs: dict[str, Any], request: Request) -> Activations:
        """What the model computes for a batch with noise; `model` is not looked at."""
        if request.names not in self._recorders:
            self._recorders[request.names] = Recorder(self.model, request)
        assert self.embedding is not None
        handle = self.embedding.register_forward_hook(lambda _module, _args, output: self._noised(output))
        try:
            return self._recorders[request.names](inputs)
        finally:
            handle.remove()
            self.part += 1

    def _noised(self, embeddings: Tensor) -> Tensor:
        return embeddings.detach() + self.draw(tuple(embeddings.shape)).to(embeddings)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """The noise of this part of this step."""
        seed = random.Random(f"{self.seed} {self.step} {self.part} {self.process}").getrandbits(63)
        generator = torch.Generator().manual_seed(seed)
        if self.options.distribution == "normal":
            return torch.randn(shape, generator=generator) * self.options.noise
        return (torch.rand(shape, generator=generator) * 2 - 1) * self.options.noise
