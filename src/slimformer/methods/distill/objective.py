"""The objective of a distillation: the teacher, and what is learned from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.train import Loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from slimformer.methods.distill.cache import TeacherCache
    from slimformer.methods.distill.knowledge import Knowledge, Seen
    from slimformer.methods.distill.watching import Watched


class Distillation:
    """Compare what student and teacher see in the same examples.

    Args:
        teacher: The teacher, watched; it is put into eval mode and gets no gradients.
        knowledge: What is learned, each kind with its weight.
        cache: Where what the teacher computed is kept; None to compute it every time.
    """

    def __init__(
        self, teacher: Watched, knowledge: Sequence[tuple[float, Knowledge]], cache: TeacherCache | None = None
    ) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.knowledge = knowledge
        self.cache = cache

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Loss:
        """The weighted sum of the losses; `model` is the watched student, wrapped or not."""
        inputs = self._hiding_alike(inputs)
        theirs = self.ask_teacher(inputs)
        ours = model(**inputs)
        mask = inputs.get("attention_mask")
        total: Tensor | None = None
        parts: dict[str, Tensor] = {}
        for weight, knowledge in self.knowledge:
            loss = knowledge.compare(theirs, ours, mask)
            total = weight * loss.total if total is None else total + weight * loss.total
            parts.update(loss.parts)
        assert total is not None
        return Loss(total, parts)

    def _hiding_alike(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A masked autoencoder draws which patches it hides; both models have to hide the same ones."""
        config: Any = self.teacher.model.config
        if not hasattr(config, "mask_ratio") or "noise" in inputs:
            return inputs
        pixels = inputs["pixel_values"]
        patches = (config.image_size // config.patch_size) ** 2
        return {**inputs, "noise": torch.rand(len(pixels), patches, device=pixels.device)}

    @torch.no_grad()
    def ask_teacher(self, inputs: dict[str, Any]) -> Seen:
        """What the teacher sees in a batch."""
        device = next(iter(inputs.values())).device
        if next(self.teacher.parameters()).device != device:
            self.teacher.to(device)
        seen: Seen = (
            self.teacher(**inputs) if self.cache is None else self.cache.get(inputs, lambda: self.teacher(**inputs))
        )
        # Losses are computed in the student's precision, whatever the teacher's is.
        return {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in seen.items()}


def freeze_unused(student: Watched, objective: Distillation, inputs: dict[str, Any]) -> list[str]:
    """Let only those weights be trained that the objective reaches; return the names of the others.

    One backward pass on a small batch tells. Nothing is trained yet.
    """
    objective(student, inputs).total.backward()
    idle = [name for name, parameter in student.named_parameters() if parameter.grad is None]
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(name not in idle)
        parameter.grad = None
    return idle
