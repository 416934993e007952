"""Multi-head self-attention relations: what MiniLMv2 distils (arXiv 2012.15828, equations 5 to 8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimformer.errors import ObjectiveError
from slimformer.objectives.losses.counting import hidden_keys
from slimformer.objectives.spec import ALL_PAIRS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: Numbers of one chunk of scores, teacher's and student's each: what stays in a core's cache, and 64 MB elsewhere.
CPU_CHUNK, CHUNK = 1 << 18, 1 << 24


def relation_loss(
    teacher: Mapping[str, Tensor],
    student: Mapping[str, Tensor],
    attention_mask: Tensor | None,
    relation_heads: int,
    pairs: Sequence[str] = ("qq", "kk", "vv"),
    weights: Sequence[float] | None = None,
    causal: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    r"""Divergence of the student's self-attention relations from the teacher's.

    Each of q, k, v is cut into relation heads; for a pair (m, n) and a head a,

    `R_mn[a] = softmax(A_m[a] · A_n[a]^T / sqrt(d_r))`,

    and the loss of a pair is the mean over sentences of `1/(A_r·|x|) Σ_a Σ_t KL(R^T_mn[a,t] ‖ R^S_mn[a,t])`. Teacher
    and student may have any widths that the number of relation heads divides. Padding, on either side, counts
    neither as row nor as column.

    Scores are made for a few sentences and heads at a time and gradients along with them, so that memory grows with
    one chunk and not with all heads and pairs. The softmax runs in float32, or in float64 when the student is in
    float64.

    Args:
        teacher: "q", "k" and "v" of the teacher's layer, [batch, length, width] each; no gradient flows to them.
        student: The same of the student's layer.
        attention_mask: [batch, length], 1 for tokens that count; None for all.
        relation_heads: Number of relation heads, A_r.
        pairs: Which relations: two of the letters q, k, v each.
        weights: Weight of each pair in the total; 1 unless given.
        causal: Whether a token relates only to itself and to those before it, as in a decoder.

    Returns:
        The weighted total, and the unweighted loss of each pair for the log, without gradient.

    Example:
        >>> total, parts = relation_loss({"q": q, "k": k, "v": v}, tapped, mask, relation_heads=48)
        >>> total.backward()
    """
    _check(teacher, student, attention_mask, relation_heads, pairs, weights)
    shape = student["q" if "q" in student else next(iter(student))].shape[:2]
    mask = torch.ones(shape, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    names = sorted({name for pair in pairs for name in pair})
    device = student[names[0]].device
    losses, total = _Relations.apply(  # type: ignore[no-untyped-call]
        tuple(pairs),
        tuple(weights or [1.0] * len(pairs)),
        relation_heads,
        causal,
        mask.to(device),
        names,
        [teacher[name].detach().to(device) for name in names],
        *[student[name] for name in names],
    )
    return total, dict(zip(pairs, losses.unbind(), strict=True))


class _Relations(torch.autograd.Function):
    """Losses of all pairs, with the gradient of their weighted sum made on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        pairs: tuple[str, ...],
        weights: tuple[float, ...],
        heads: int,
        causal: bool,
        mask: Tensor,
        names: list[str],
        teacher: list[Tensor],
        *student: Tensor,
    ) -> tuple[Tensor, Tensor]:
        precision = torch.promote_types(student[0].dtype, torch.float32)
        theirs = {name: _heads(value.to(precision), heads, mask) for name, value in zip(names, teacher, strict=True)}
        ours = {name: _heads(value.to(precision), heads, mask) for name, value in zip(names, student, strict=True)}
        wants = any(ctx.needs_input_grad[7:])
        gradients = {name: torch.zeros_like(value) if wants else None for name, value in ours.items()}
        hidden = _hidden(mask, causal)
        # 1/(A_r·|x|) for each row, mean over the sentences; rows of padding weigh nothing.
        rows = mask.to(precision) / (mask.sum(-1, keepdim=True).clamp(min=1) * heads * len(mask))
        losses = rows.new_zeros(len(pairs))
        for at in _chunks(len(mask), heads, mask.shape[1], CPU_CHUNK if mask.device.type == "cpu" else CHUNK):
            unseen = None if hidden is None else hidden[at[0]]
            shares = rows[at[0], None, :, None]  # [batch, 1, query, 1]
            for number, pair in enumerate(pairs):
                m, n = pair[0], pair[1]
                wanted = _log_relation(theirs[m][at], theirs[n][at], unseen)
                made = _log_relation(ours[m][at], ours[n][at], unseen)
                likely = wanted.exp()
                apart = wanted.sub_(made)
                if unseen is not None:
                    # Hidden columns have probability 0 on both sides; 0 times (-inf minus -inf) must count as 0.
                    apart.masked_fill_(unseen, 0)
                losses[number] += apart.mul_(likely).mul_(shares).sum()
                if wants:
                    slope = made.exp_().sub_(likely).mul_(shares * weights[number] / math.sqrt(ours[m].shape[-1]))
                    _add(gradients[m], at, slope @ ours[n][at])
                    _add(gradients[n], at, slope.mT @ ours[m][at])
        if wants:
            merged = (_merge(gradients[name]) for name in names)
            ctx.save_for_backward(*(value.to(each.dtype) for value, each in zip(merged, student, strict=True)))
        ctx.mark_non_differentiable(losses)
        return losses, (losses * losses.new_tensor(weights)).sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor, gradient: Tensor) -> tuple[Any, ...]:
        return (None,) * 7 + tuple(gradient * each for each in ctx.saved_tensors)


def _heads(value: Tensor, heads: int, mask: Tensor) -> Tensor:
    """[batch, length, width] → [batch, relation heads, length, width of a head]; whatever padding holds becomes 0."""
    split: Tensor = value.masked_fill(~mask[..., None], 0).unflatten(-1, (heads, -1))
    return split.transpose(1, 2).contiguous()


def _merge(value: Tensor | None) -> Tensor:
    assert value is not None
    return value.transpose(1, 2).flatten(2)


def _hidden(mask: Tensor, causal: bool) -> Tensor | None:
    """Which keys each query does not see; None where all see all, as in packed text on a CPU, which can tell."""
    if not causal and mask.device.type == "cpu" and bool(mask.all()):
        return None
    return hidden_keys(mask, causal)


def _chunks(batch: int, heads: int, length: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Sentences and heads to work on together, so that their scores are at most `most` numbers, if one head is."""
    head_step = min(heads, max(1, most // length**2))
    batch_step = max(1, most // (head_step * length**2))
    for row in range(0, batch, batch_step):
        for head in range(0, heads, head_step):
            yield slice(row, row + batch_step), slice(head, head + head_step)


def _add(total: Tensor | None, at: tuple[slice, slice], value: Tensor) -> None:
    assert total is not None
    total[at] += value


def _log_relation(one: Tensor, other: Tensor, hidden: Tensor | None) -> Tensor:
    scores = (one / math.sqrt(one.shape[-1])) @ other.mT
    if hidden is not None:
        scores.masked_fill_(hidden, -math.inf)
    return scores.log_softmax(dim=-1)


def _check(
    teacher: Mapping[str, Tensor],
    student: Mapping[str, Tensor],
    attention_mask: Tensor | None,
    heads: int,
    pairs: Sequence[str],
    weights: Sequence[float] | None,
) -> None:
    for pair in pairs:
        if pair not in ALL_PAIRS:
            raise ObjectiveError(f"there is no relation `{pair}`; choose from {', '.join(ALL_PAIRS)}")
    if not pairs or (weights is not None and len(weights) != len(pairs)):
        raise ObjectiveError(
            f"{len(pairs)} relations and {0 if weights is None else len(weights)} weights; give one weight for each"
        )
    names = sorted({name for pair in pairs for name in pair})
    for side, tensors in (("teacher", teacher), ("student", student)):
        for name in names:
            if name not in tensors:
                raise ObjectiveError(f"the {side} has no `{name}`, which the relations need; record it with taps")
        for pair in pairs:
            m, n = pair[0], pair[1]
            if tensors[m].shape[-1] != tensors[n].shape[-1]:
                raise ObjectiveError(
                    f"`{m}` of the {side} is {tensors[m].shape[-1]} wide and `{n}` is {tensors[n].shape[-1]}, so they "
                    f"have no relation `{m}{n}`; with grouped queries choose from qq, kk, kv, vk, vv"
                )
    check_relation_heads(heads, *([tensors[name].shape[-1] for name in names] for tensors in (teacher, student)))
    shapes = {tuple(tensors[name].shape[:2]) for tensors in (teacher, student) for pair in pairs for name in pair}
    shapes |= set() if attention_mask is None else {tuple(attention_mask.shape)}
    if len(shapes) > 1:
        raise ObjectiveError(f"batches and lengths differ: {sorted(shapes)}; give both models the same tokens")


def check_relation_heads(heads: int, teacher: Iterable[int], student: Iterable[int]) -> None:
    """Raise where a width of either side cannot be cut into that many relation heads, listing the numbers that fit."""
    widths = [("teacher", width) for width in teacher] + [("student", width) for width in student]
    common = math.gcd(*(width for _, width in widths))
    for side, width in widths:
        if heads < 1 or width % heads:
            fitting = ", ".join(str(number) for number in range(1, common + 1) if common % number == 0)
            raise ObjectiveError(
                f"`relation_heads` is {heads}, which does not divide the {side}'s width {width}; choose from {fitting}"
            )
