"""How far the sizes of a model say what its largest one says (MatFormer, arXiv 2310.07707, section 4.1.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy, unwrap
from slimformer.errors import ConfigError
from slimformer.objectives.recording import LABELS
from slimformer.report import Figure, Finding, bars
from slimformer.sizes import Elastic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slimformer.sizes.naming import Sized

Batch = Mapping[str, Any]
#: A batch without labels → logits, [batch, classes] or [batch, length, vocabulary].
_Logits = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Agreement:
    """How much of what the largest size says another model says too.

    Args:
        top1: Share of predictions whose likeliest class or token is the same.
        kl: Mean of KL(largest ‖ other) over the predictions, in nats.
        tokens: Share of the tokens with which the largest size goes on greedily that the other would choose after the
            same prefix; None where nothing is generated. This is how often a greedy draft would be accepted.
    """

    top1: float
    kl: float
    tokens: float | None = None


@torch.no_grad()
def consistency(
    model: nn.Module,
    batches: Iterable[Batch],
    sizes: Iterable[Sized] | None = None,
    others: Mapping[str, nn.Module] | None = None,
    prefix: int = 16,
    new_tokens: int = 0,
) -> Finding[dict[str, Agreement]]:
    """Compare sizes of an elastic model, and other models of the same vocabulary, with its largest size.

    Args:
        model: The elastic model: a language model or a classifier.
        batches: Inputs, padded on the right if at all; padding is not counted.
        sizes: Which sizes or allocations; by default all but the largest.
        others: More models by name, such as separately trained ones of the same sizes.
        prefix: Tokens of a text after which a decoder goes on; shorter texts are left out.
        new_tokens: Tokens that the largest size adds to each prefix; 0 to generate nothing.

    Raises:
        ConfigError: Where nothing can be compared, or gone on with.

    Example:
        >>> inputs = tokenizer(texts, padding=True, return_tensors="pt")
        >>> consistency(model, [inputs], new_tokens=32).data["S"].top1
    """
    elastic = Elastic.of(model)
    if new_tokens and not Anatomy.of(model).family.causal:
        raise ConfigError(f"`new_tokens` is `{new_tokens}`, and this model is no decoder; leave it at 0")
    largest = partial(_logits, model, elastic.largest)
    chosen = elastic.names[:-1] if sizes is None else sizes
    compared: dict[str, _Logits] = {
        size if isinstance(size, str) else str(elastic.allocation(size)): partial(_logits, model, size)
        for size in chosen
    }
    compared |= {name: partial(_logits, other, None) for name, other in (others or {}).items()}
    sums = {name: _Sums() for name in compared}
    training = {each: each.training for each in (model, *(others or {}).values())}
    try:
        for each in training:
            each.eval()
        for batch in batches:
            inputs = {name: value for name, value in batch.items() if name not in LABELS}
            _compare(inputs, largest, compared, sums)
            if new_tokens:
                _compare_tokens(_continued(model, elastic, inputs, prefix, new_tokens), prefix, compared, sums)
    finally:
        for each, mode in training.items():
            each.train(mode)
    if new_tokens and not any(total.generated for total in sums.values()):
        raise ConfigError(
            f"`new_tokens` is {new_tokens}, and no text has the {prefix} tokens after which it is gone on with; give "
            "longer ones, or a smaller `prefix`"
        )
    data = {name: total.agreement() for name, total in sums.items()}
    return Finding(data, Figure("Agreement with the largest size", bars(_heights(data), "% of predictions")))


@dataclass
class _Sums:
    """Counts over batches, of one model."""

    equal: int = 0
    kl: float = 0.0
    predictions: int = 0
    accepted: int = 0
    generated: int = 0

    def agreement(self) -> Agreement:
        if not self.predictions:
            raise ConfigError("there is nothing to compare: no batch holds a token or a text; give at least one")
        tokens = self.accepted / self.generated if self.generated else None
        return Agreement(self.equal / self.predictions, self.kl / self.predictions, tokens)


def _logits(model: nn.Module, size: Sized | None, inputs: Batch) -> Tensor:
    with nullcontext() if size is None else Elastic.of(model).at(size):
        logits: Tensor = model(**inputs).logits
    return logits.float()


def _compare(inputs: Batch, largest: _Logits, compared: Mapping[str, _Logits], sums: Mapping[str, _Sums]) -> None:
    target = largest(inputs)
    counts = _counted(inputs, target)
    target = target[counts].log_softmax(-1)
    for name, logits in compared.items():
        other = logits(inputs)
        if other.shape[:-1] != counts.shape or other.shape[-1] != target.shape[-1]:
            raise ConfigError(
                f"`{name}` gives logits of {list(other.shape)} where the largest size gives "
                f"{[*counts.shape, target.shape[-1]]}; compare models of one vocabulary and head"
            )
        other = other[counts].log_softmax(-1)
        total = sums[name]
        total.equal += int((target.argmax(-1) == other.argmax(-1)).sum())
        total.kl += float((target.exp() * (target - other)).sum(-1, dtype=torch.float64).sum())
        total.predictions += len(target)


def _counted(inputs: Batch, logits: Tensor) -> Tensor:
    """Boolean, as logits without their last axis: True where a prediction is no padding's."""
    mask: Tensor | None = inputs.get("attention_mask")
    if mask is None or mask.shape != logits.shape[:-1]:
        return torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    return mask.bool()


def _continued(model: nn.Module, elastic: Elastic, inputs: Batch, prefix: int, new_tokens: int) -> Tensor:
    """Prefixes and what the largest size adds to them greedily: [texts, prefix + new]; -1 after the end of one."""
    ids: Tensor = inputs["input_ids"]
    mask: Tensor = inputs.get("attention_mask", torch.ones_like(ids))
    long_enough = mask[:, :prefix].all(-1) if ids.shape[1] >= prefix else torch.zeros(len(ids), dtype=torch.bool)
    starts = ids[long_enough][:, :prefix]
    if not len(starts):
        return starts.new_zeros(0, prefix + 1)
    plain: Any = unwrap(model)
    with elastic.at(elastic.largest):
        tokens: Tensor = plain.generate(
            input_ids=starts, attention_mask=torch.ones_like(starts), do_sample=False, max_new_tokens=new_tokens
        )
    ends = plain.generation_config.eos_token_id
    if ends is not None:
        end = torch.isin(tokens[:, prefix:], torch.as_tensor(ends, device=tokens.device))
        beyond = (end.cumsum(-1) - end.long()) > 0
        tokens[:, prefix:] = tokens[:, prefix:].masked_fill(beyond, -1)
    return tokens


def _compare_tokens(tokens: Tensor, prefix: int, compared: Mapping[str, _Logits], sums: Mapping[str, _Sums]) -> None:
    """One forward over prefix and continuation tells what a model would choose at each place of it."""
    targets = tokens[:, prefix:]
    counts = targets >= 0
    for name, logits in compared.items():
        choices = logits({"input_ids": tokens.clamp(min=0)})[:, prefix - 1 : -1].argmax(-1) if len(tokens) else targets
        sums[name].accepted += int((choices == targets)[counts].sum())
        sums[name].generated += int(counts.sum())


def _heights(data: Mapping[str, Agreement]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "same likeliest": 100 * each.top1,
            **({} if each.tokens is None else {"same greedy token": 100 * each.tokens}),
        }
        for name, each in data.items()
    }
