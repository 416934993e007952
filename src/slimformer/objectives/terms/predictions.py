"""What a head says: soft labels of the teacher for every kind of head, and the task's own loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from slimformer.config import Config, Temperature
from slimformer.errors import ConfigError
from slimformer.models import IGNORED
from slimformer.objectives.losses.counting import mean_square
from slimformer.objectives.losses.logits import soft_label_loss, soft_multilabel_loss, soft_token_loss
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.term import MASKED, Mean, Term, count_examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from slimformer.objectives.recording import Activations


class SoftLabels(Term):
    """What the teacher's head says, whatever the head (arXiv 1503.02531).

    Classes and choices: cross-entropy with soft labels. Several labels at once: binary cross-entropy of each. Numbers:
    squared difference. Spans: cross-entropy over positions, of start and end, their mean. All these are means over
    examples. Tags and tokens: cross-entropy, a mean over the positions that have a label; without labels a mean over
    each text's tokens and then over texts. Masked tokens: on a masked copy of the input, a mean over what is masked.
    """

    class Options(Config):
        """How soft the labels are."""

        temperature: Temperature = Field(1.0, description="Of the soft labels.")
        mean_over_classes: bool = Field(False, description="Divide by the number of classes, as TernaryBERT.")

    part = "soft_labels"
    stage = "predictions"
    headed = True

    def check(self) -> None:
        """Refuse a student without a head."""
        student = self.models.student
        if student.model is student.base:
            raise ConfigError(
                f"`logits` compares what heads say, and the student is a bare `{type(student.model).__name__}`; give a "
                "model with a head, or leave `logits` out"
            )
        problem = getattr(student.model.config, "problem_type", None)
        self.regression = problem == "regression"
        self.multilabel = problem == "multi_label_classification"
        head = type(student.model).__name__
        self.next_token = self.models.causal and "TokenClassification" not in head
        # Of a token it sees, a masked language model only says that it is there. So both models look at the same masked
        # text and are compared under the masks, as DistilBERT's code does with `restrict_ce_to_mask` (arXiv
        # 1910.01108). A task that masks its texts itself prepares no other variant.
        if "MaskedLM" in head and MASKED in self.models.variants:
            self.variant = MASKED

    def student_request(self) -> Request:
        """Outputs of the head."""
        return Request(outputs=frozenset({"predictions"}))

    def teacher_request(self) -> Request:
        """The same."""
        return self.student_request()

    def count(self, inputs: Mapping[str, Any]) -> int:
        """Labelled positions where each has a label, else examples."""
        positions = None if self.multilabel else _positions(inputs)
        if positions is None:
            return count_examples(inputs)
        return int((positions[:, 1:] if self.next_token else positions).sum())

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """How far what the student's head says is from what the teacher's says."""
        return self.mean(self._loss(teacher, student, inputs), inputs)

    def _loss(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Tensor:
        if "start_logits" in student:
            return span_loss(teacher, student, inputs.get("attention_mask"), self.options.temperature)
        target, output = teacher["logits"], student["logits"]
        if self.multilabel:
            return soft_multilabel_loss(target, output, self.options.temperature)
        if output.dim() == 3:
            return self._of_tokens(target, output, inputs)
        if self.regression or output.shape[-1] == 1:
            return mean_square(target, output)
        return self._soft(target, output)

    def _of_tokens(self, target: Tensor, output: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        positions = _positions(inputs)
        if positions is None:
            mask = inputs.get("attention_mask")
            if mask is None:
                return self._soft(target, output)
            return soft_token_loss(target, output, mask, self.options.temperature)
        if self.next_token:
            target, output, positions = target[:, :-1], output[:, :-1], positions[:, 1:]
        if not positions.any():  # a part of a batch may have no label
            return output.sum() * 0
        return self._soft(target[positions], output[positions])

    def _soft(self, target: Tensor, output: Tensor) -> Tensor:
        return soft_label_loss(target, output, self.options.temperature, self.options.mean_over_classes)


class Labels(Term):
    """The task's own loss on its labels, as the student's head computes it; no teacher."""

    part = "labels"
    stage = "predictions"
    source = None
    labelled = True

    def student_request(self) -> Request:
        """The loss of the head."""
        return Request(outputs=frozenset({"loss"}))

    def count(self, inputs: Mapping[str, Any]) -> int:
        """What the task says its loss is a mean over; else labelled tokens or examples."""
        if self.models.items is not None:
            return self.models.items(inputs)
        return count_labels(inputs, shifted=shifts_labels(self.models.student.model))

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """The loss of the head."""
        return self.mean(student["loss"], inputs)


def span_loss(
    teacher: Activations, student: Activations, attention_mask: Tensor | None, temperature: float = 1.0
) -> Tensor:
    """Cross-entropy over the positions of a text, of start and end, their mean."""
    ends = [
        soft_label_loss(_inside(teacher[name], attention_mask), _inside(student[name], attention_mask), temperature)
        for name in ("start_logits", "end_logits")
    ]
    return (ends[0] + ends[1]) / 2


def count_labels(inputs: Mapping[str, Any], *, shifted: bool = False) -> int:
    """Labelled tokens where each token has a label, else examples.

    Args:
        inputs: A batch.
        shifted: Whether a position predicts the token after it, so that the first is not predicted.
    """
    positions = _positions(inputs)
    if positions is None:
        return count_examples(inputs)
    return max(1, int((positions[:, 1:] if shifted else positions).sum()))


def shifts_labels(model: nn.Module) -> bool:
    """Whether a model's own loss compares each position with the label after it."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    # Transformers names no loss for `GPT2LMHeadModel`, and takes that of decoders then.
    default = "ForCausalLM" if "LMHead" in type(model).__name__ else ""
    return LOSS_MAPPING.get(str(getattr(model, "loss_type", None) or default)) is ForCausalLMLoss


def _positions(inputs: Mapping[str, Any]) -> Tensor | None:
    """Which positions have a label: [batch, length]; None where positions have none."""
    labels: Tensor | None = inputs.get("labels")
    return None if labels is None or labels.dim() < 2 else labels != IGNORED


def _inside(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits over positions, with padding out of reach."""
    if mask is None:
        return logits
    # Low enough for a probability of 0, and finite, as 0 times infinity is no number.
    return logits.masked_fill(~mask.bool(), -1e4)
