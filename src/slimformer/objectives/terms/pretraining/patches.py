"""Masked autoencoding: the pixels of patches that were hidden (arXiv 2111.06377)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from slimformer.config import Config
from slimformer.errors import ConfigError
from slimformer.models.autoencoder import hides_patches
from slimformer.objectives.losses.counting import mean_square
from slimformer.objectives.losses.patches import patch_loss
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.term import MASKED, Mean, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.objectives.recording import Activations


class HiddenPatches(Term):
    """Squared error of hidden patches: a mean over the hidden patches of each image and then over images; no teacher.

    Which patches are hidden is said by `masked.noise` of the batch, [batch, patches]; see `tasks.masking.PatchMasking`.
    """

    class Options(Config):
        """What is predicted."""

        normalize: bool | None = Field(
            None, description="Predict pixels normalised patch by patch; by default as the model's `norm_pix_loss`."
        )

    part = "patches"
    variant = MASKED
    stage = "predictions"
    source = None

    def check(self) -> None:
        """Refuse what has no decoder."""
        student = self.models.student
        config: Any = student.config
        if student.model is student.base or not hides_patches(config):
            raise ConfigError(
                f"`patches` predicts hidden patches, and a `{type(student.model).__name__}` has no decoder for them; "
                "make a masked autoencoder of a ViT with `as_autoencoder`, or leave it out"
            )
        self.patch_size: int = config.patch_size
        self.normalize: bool = config.norm_pix_loss if self.options.normalize is None else self.options.normalize

    def student_request(self) -> Request:
        """What the decoder says, and which patches were hidden."""
        return Request(outputs=frozenset({"predictions", "patch_mask"}))

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Squared error of the hidden patches."""
        pixels, mask = inputs["pixel_values"], student["patch_mask"]
        loss = patch_loss(pixels, student["logits"], mask, self.patch_size, normalize=self.normalize)
        return self.mean(loss, inputs)


class PatchPredictions(Term):
    """What the teacher's decoder says where the same patches are hidden: squared difference, a mean over images."""

    part = "predictions"
    variant = MASKED
    stage = "predictions"
    headed = True

    def student_request(self) -> Request:
        """What the decoder says."""
        return Request(outputs=frozenset({"predictions"}))

    def teacher_request(self) -> Request:
        """The same."""
        return self.student_request()

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Squared difference of all patches that are predicted."""
        return self.mean(mean_square(teacher["logits"], student["logits"]), inputs)
