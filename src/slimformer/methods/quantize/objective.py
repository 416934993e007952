"""What a quantized student learns from its float teacher (arXiv 2211.11014, sections 3 and 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.methods.quantize.config import TERMS
from slimformer.methods.quantize.predictions import LABELS, prediction_loss
from slimformer.methods.quantize.progress import EVERY, Progress, rebalance
from slimformer.methods.quantize.recording import Recorder, Seen
from slimformer.objectives import attention_map_loss, attention_score_loss, hidden_state_loss
from slimformer.train import Loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from slimformer.methods.quantize.config import Knowledge
    from slimformer.views.attention import Scores

#: Additive masks are -3e38, which becomes infinite when divided by a temperature; this hides a token as well.
HIDDEN = -1e4


class KdObjective:
    """Soft labels, hidden states, and what attention does, compared layer by layer.

    Always: cross-entropy with the teacher's predictions, and the squared difference of the embeddings and of every
    block's output. Plus, summed over the blocks, one or two of: attention scores, attention maps, the attention
    sub-layer's output, the multi-head attention's output before the residual sum.

    Args:
        teacher: The float model; it is put into eval mode and gets no gradients.
        student: The model that is trained, without wrappers.
        kd: Which terms; see `config.TERMS`.
        beta: Weight of the second of two terms.
        temperature: Of attention maps.
        layers: Blocks to compare; None for all.
        reference: Count padding in squared differences, as the published code does.
        mean_over_classes: Divide soft labels by the number of classes.
        auto_balance: Weigh the two terms by their gradients instead of beta.
        first_stage: Steps in which only the layers are learned from; the logits alone come after them. None for
            everything at once.
        accumulation: Calls per optimizer step.

    Example:
        >>> teacher = copy.deepcopy(student)
        >>> objective = KdObjective(teacher, student, kd="map+output", beta=0.5)
        >>> objective(student, batch).total.backward()
    """

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        *,
        kd: Knowledge = "map+output",
        beta: float = 0.5,
        temperature: float = 1.0,
        layers: tuple[int, ...] | None = None,
        reference: bool = False,
        mean_over_classes: bool = False,
        auto_balance: bool = False,
        first_stage: int | None = None,
        accumulation: int = 1,
    ) -> None:
        anatomy = Anatomy.of(student)
        self.layers = tuple(range(len(anatomy.blocks))) if layers is None else layers
        self.windowed = [
            getattr(anatomy.blocks[index].attention, "sliding_window", None) is not None for index in self.layers
        ]
        self.terms = TERMS[kd]
        self.weights = dict(zip(self.terms, (1.0, beta), strict=False))
        self.temperature = temperature
        self.reference = reference
        self.mean_over_classes = mean_over_classes
        self.auto_balance = auto_balance
        self.first_stage = first_stage
        self.accumulation = accumulation
        self.causal = anatomy.family.causal
        self.regression = getattr(anatomy.model.config, "problem_type", None) == "regression"
        self.next_token = self.causal and "TokenClassification" not in type(anatomy.model).__name__
        self.teacher = teacher.eval().requires_grad_(False)
        self.matrices = [weight for block in anatomy.blocks for weight in block.module.parameters() if weight.dim() > 1]
        self._see = [Recorder(model, self.layers, self.terms) for model in (teacher, student)]
        self._see_only_heads = [Recorder(model, (), (), hidden=False) for model in (teacher, student)]
        stateful = auto_balance or first_stage is not None
        self.progress = Progress.on(student, len(self.terms)) if stateful else None

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Loss:
        """Run teacher and student on a batch, and compare them."""
        step = 0
        if self.progress is not None:
            step = int(self.progress.calls) // self.accumulation
            self.progress.calls += 1
        stage = 0 if self.first_stage is None else 1 if step < self.first_stage else 2
        batch = {name: value for name, value in inputs.items() if name not in LABELS}
        if self.causal:
            batch["use_cache"] = False
        device = next(iter(inputs.values())).device
        if next(self.teacher.parameters()).device != device:
            self.teacher.to(device)
        see_teacher, see_student = self._see_only_heads if stage == 2 else self._see
        with torch.inference_mode():
            theirs = see_teacher(self.teacher, batch)
        ours = see_student(model, batch)
        parts = {
            "soft_labels": prediction_loss(
                theirs.outputs,
                ours.outputs,
                inputs,
                regression=self.regression,
                next_token=self.next_token,
                mean_over_classes=self.mean_over_classes,
            )
        }
        if stage == 2:
            return Loss(parts["soft_labels"], parts)
        mask = _token_mask(inputs)
        parts["hidden"] = self._hidden(theirs, ours, mask)
        parts |= {term: getattr(self, f"_{term}")(theirs, ours, mask) for term in self.terms}
        weights = self._weights(step, parts)
        # In the first stage the head has no say, but must stay in the graph: distributed training waits for it.
        total = parts["soft_labels"] * (0.0 if stage == 1 else 1.0) + parts["hidden"]
        for term in self.terms:
            total = total + weights[term] * parts[term]
        if self.auto_balance:
            parts |= {f"{term}_weight": total.new_tensor(weights[term]) for term in self.terms}
        return Loss(total, parts)

    def _weights(self, step: int, parts: dict[str, Tensor]) -> dict[str, float]:
        if not self.auto_balance or self.progress is None:
            return self.weights
        due = step % EVERY == 0 and int(self.progress.calls - 1) % self.accumulation == 0
        if due and torch.is_grad_enabled():
            rebalance(self.progress, [parts[term] for term in self.terms], self.matrices)
        return dict(zip(self.terms, self.progress.weights.tolist(), strict=True))

    def _hidden(self, theirs: Seen, ours: Seen, mask: Tensor | None) -> Tensor:
        assert theirs.embeddings is not None
        assert ours.embeddings is not None
        counted = None if self.reference else mask
        embeddings = hidden_state_loss(theirs.embeddings, ours.embeddings, counted)
        return embeddings + self._summed(theirs, ours, "output", counted)

    def _output(self, theirs: Seen, ours: Seen, mask: Tensor | None) -> Tensor:
        return self._summed(theirs, ours, "attention_output", None if self.reference else mask)

    def _mha(self, theirs: Seen, ours: Seen, mask: Tensor | None) -> Tensor:
        return self._summed(theirs, ours, "mha", None if self.reference else mask)

    def _summed(self, theirs: Seen, ours: Seen, name: str, mask: Tensor | None) -> Tensor:
        return _sum(
            hidden_state_loss(getattr(wanted, name), getattr(made, name), mask)
            for wanted, made in zip(theirs.blocks, ours.blocks, strict=True)
        )

    def _map(self, theirs: Seen, ours: Seen, mask: Tensor | None) -> Tensor:
        def loss(wanted: Scores, made: Scores, windowed: bool) -> Tensor:
            see: Callable[[Scores], Tensor] = _in_window if windowed else _plain
            return attention_map_loss(see(wanted), see(made), mask, self.temperature, self.causal)

        return _sum(map(loss, theirs.scores, ours.scores, self.windowed))

    def _score(self, theirs: Seen, ours: Seen, mask: Tensor | None) -> Tensor:
        def loss(wanted: Scores, made: Scores) -> Tensor:
            if self.reference:
                return attention_score_loss(wanted.masked, made.masked, None, reference=True)
            return attention_score_loss(wanted.scores, made.scores, mask, causal=self.causal)

        return _sum(map(loss, theirs.scores, ours.scores))


def _token_mask(inputs: dict[str, Any]) -> Tensor | None:
    """Which tokens count: [batch, length], the choices of an example one after the other."""
    mask: Tensor | None = inputs.get("attention_mask")
    return mask.flatten(0, 1) if mask is not None and mask.dim() == 3 else mask


def _plain(scores: Scores) -> Tensor:
    return scores.scores


def _in_window(scores: Scores) -> Tensor:
    return scores.scores if scores.mask is None else scores.scores + scores.mask.clamp(min=HIDDEN)


def _sum(losses: Any) -> Tensor:
    total: Tensor = torch.stack(list(losses)).sum()
    return total
