"""Whether a student's attention puts tokens in its teacher's order (arXiv 2211.11014, section 3).

All functions take attention probabilities of one block, [batch, heads, query, key], and the tokens that count,
boolean [batch, length].
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from slimformer.methods.quantize.analysis.looking import attention_maps, select_tokens, tokens_that_count
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from torch import Tensor, nn


def cover_length_ratio(teacher: Tensor, student: Tensor, counts: Tensor, k: int = 5) -> list[float]:
    """How deep into the student's sorted row one must go to meet the teacher's top k tokens, over the length.

    For each head the mean over rows and sentences; k/length is the best there is, for rows longer than k.
    """
    seen = _rows(counts, teacher)
    top = min(k, teacher.shape[-1])
    targets = teacher.masked_fill(~seen, -1).topk(top, dim=-1).indices
    ranks = _ranks(student.masked_fill(~seen, -1)).gather(-1, targets)
    # Of a text with fewer tokens than k, padding is among the top k and does not count.
    real = seen.expand_as(teacher).gather(-1, targets)
    depth = ranks.masked_fill(~real, 0).amax(dim=-1)
    return _mean(depth / counts.sum(-1)[:, None, None], counts)


def ranking_loss(teacher: Tensor, student: Tensor, counts: Tensor) -> list[float]:
    """Size of the student's differences between tokens that the teacher has the other way round.

    For each head `Σ_i<j max(0, -(s_i - s_j)·sign(t_i - t_j))`, the mean over the rows of all sentences; the paper adds
    the heads up. Takes the memory of a few maps, not that of all pairs of tokens.
    """
    seen = _rows(counts, teacher)
    # In the teacher's order, whatever stands before a token should have more; padding comes last and has least.
    ordered, order = teacher.masked_fill(~seen, -1).sort(dim=-1, descending=True)
    values = student.masked_fill(~seen, -1).gather(-1, order)
    rows = values.new_zeros(values.shape[:-1])  # [batch, heads, query]
    for apart in range(1, values.shape[-1]):
        wrong = (values[..., apart:] - values[..., :-apart]).clamp_(min=0)
        rows += wrong.masked_fill_(ordered[..., apart:] == ordered[..., :-apart], 0).sum(dim=-1)
    return _mean(rows, counts)


def rank_ratio(attention: Tensor, counts: Tensor, token: int | Tensor = 0) -> list[float]:
    """Rank of some tokens in each head's rows, over the length: 1/length where one comes first everywhere.

    Args:
        attention: Attention probabilities.
        counts: The tokens that count.
        token: A position, or boolean [batch, length], True for the tokens to look at, such as every [SEP]
            (`tokens_in`); texts that have none are left out.
    """
    chosen = select_tokens(token, counts)
    ranks = _ranks(attention.masked_fill(~_rows(counts, attention), -1)) / counts.sum(-1)[:, None, None, None]
    weight = (counts[:, None, :, None] & chosen[:, None, None, :]).expand_as(ranks)
    per_head: list[float] = ((ranks * weight).sum(dim=(0, 2, 3)) / weight.sum(dim=(0, 2, 3))).tolist()
    return per_head


def compare_ranking(
    teacher: nn.Module, students: dict[str, nn.Module], batch: dict[str, Any], k: int = 5
) -> Finding[dict[str, dict[str, list[list[float]]]]]:
    """Cover length ratio and ranking loss of some students: for each block, for each head.

    The picture has one point for each block: the mean of the heads' ratios, the sum of their losses.
    """
    targets = attention_maps(teacher, batch)
    counts = tokens_that_count(batch, targets[0])
    data: dict[str, dict[str, list[list[float]]]] = {}
    for name, student in students.items():
        pairs = list(zip(targets, attention_maps(student, batch), strict=True))
        data[name] = {
            "cover_length_ratio": [cover_length_ratio(one, other, counts, k) for one, other in pairs],
            "ranking_loss": [ranking_loss(one, other, counts) for one, other in pairs],
        }
    blocks = list(range(len(targets)))
    panels = [
        (label, [Series(name, blocks, [summary(heads) for heads in values[key]]) for name, values in data.items()])
        for key, label, summary in (
            ("cover_length_ratio", f"cover length ratio, top {k}", fmean),
            ("ranking_loss", "ranking loss", sum),
        )
    ]
    return Finding(data, Figure("Order of attention", curves(panels, x_label="block")))


def compare_rank_of_token(models: dict[str, nn.Module], batch: dict[str, Any], token: int | Tensor = 0) -> Finding[Any]:
    """Rank ratio of some tokens per head, block by block, for some models; `token` as in `rank_ratio`."""
    data: dict[str, list[list[float]]] = {}
    for name, model in models.items():
        maps = attention_maps(model, batch)
        counts = tokens_that_count(batch, maps[0])
        data[name] = [rank_ratio(attention, counts, token) for attention in maps]
    series = [
        Series(name, list(range(len(flat))), flat)
        for name, blocks in data.items()
        if (flat := [ratio for block in blocks for ratio in block])
    ]
    title = f"Rank of {f'token {token}' if isinstance(token, int) else 'the chosen tokens'} in every head"
    return Finding(data, Figure(title, curves([("rank ratio", series)], x_label="head, counted through the blocks")))


def _rows(counts: Tensor, attention: Tensor) -> Tensor:
    """Which keys count, for every row: [batch, 1, 1, key]; a causal row counts what it sees."""
    return counts[:, None, None, :].expand(-1, 1, attention.shape[-2], -1)


def _ranks(values: Tensor) -> Tensor:
    """1 for the largest of a row, 2 for the next; of equals the first comes first."""
    order = values.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(1, values.shape[-1] + 1, device=values.device).expand_as(values)
    return torch.empty_like(order).scatter_(-1, order, places)


def _mean(rows: Tensor, counts: Tensor) -> list[float]:
    """Mean over the rows that count, for each head: [batch, heads, query] → [heads]."""
    per_head: list[float] = ((rows * counts[:, None, :]).sum(dim=(0, 2)) / counts.sum()).tolist()
    return per_head
