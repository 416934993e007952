"""Whether a student's attention puts tokens in its teacher's order (arXiv 2211.11014, section 3).

All functions take attention probabilities of one block, [batch, heads, query, key], and the tokens that count,
boolean [batch, length].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.methods.quantize.analysis.looking import attention_maps, tokens_that_count
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from torch import Tensor, nn


def cover_length_ratio(teacher: Tensor, student: Tensor, counts: Tensor, k: int = 5) -> float:
    """How deep into the student's sorted row one must go to meet the teacher's top k tokens, over the length.

    The mean over rows, heads and sentences; k/length is the best there is, for rows longer than k.
    """
    seen = _rows(counts, teacher)
    top = min(k, teacher.shape[-1])
    theirs = teacher.masked_fill(~seen, -1).topk(top, dim=-1).indices
    ranks = _ranks(student.masked_fill(~seen, -1)).gather(-1, theirs)
    # Of a text with fewer tokens than k, padding is among the top k and does not count.
    real = seen.expand_as(teacher).gather(-1, theirs)
    depth = ranks.masked_fill(~real, 0).amax(dim=-1)
    return _mean(depth / counts.sum(-1)[:, None, None], counts)


def ranking_loss(teacher: Tensor, student: Tensor, counts: Tensor) -> float:
    """Size of the student's differences between tokens that the teacher has the other way round.

    `Σ_h Σ_i<j max(0, -(s_i - s_j)·sign(t_i - t_j))`, the mean over the rows of all sentences.
    """
    seen = _rows(counts, teacher)
    both = seen.unsqueeze(-1) & seen.unsqueeze(-2)  # [batch, 1, query, key, key]
    wanted = (teacher.unsqueeze(-1) - teacher.unsqueeze(-2)).sign()
    made = student.unsqueeze(-1) - student.unsqueeze(-2)
    wrong = (-made * wanted).clamp(min=0).masked_fill(~both, 0)
    rows = wrong.sum(dim=(-1, -2)) / 2  # each pair was counted twice
    return _mean(rows.sum(dim=1, keepdim=True), counts)


def rank_ratio(attention: Tensor, counts: Tensor, token: int) -> list[float]:
    """Rank of one token in each head's rows, over the length: 1/length where it comes first everywhere."""
    seen = _rows(counts, attention)
    ranks = _ranks(attention.masked_fill(~seen, -1))[..., token] / counts.sum(-1)[:, None, None]
    weight = counts[:, None, :].expand_as(ranks)
    per_head: list[float] = ((ranks * weight).sum(dim=(0, 2)) / weight.sum(dim=(0, 2))).tolist()
    return per_head


def compare_ranking(
    teacher: nn.Module, students: dict[str, nn.Module], batch: dict[str, Any], k: int = 5
) -> Finding[dict[str, dict[str, list[float]]]]:
    """Cover length ratio and ranking loss of some students, block by block."""
    theirs = attention_maps(teacher, batch)
    counts = tokens_that_count(batch, theirs[0])
    data: dict[str, dict[str, list[float]]] = {}
    for name, student in students.items():
        ours = attention_maps(student, batch)
        pairs = list(zip(theirs, ours, strict=True))
        data[name] = {
            "cover_length_ratio": [cover_length_ratio(one, other, counts, k) for one, other in pairs],
            "ranking_loss": [ranking_loss(one, other, counts) for one, other in pairs],
        }
    blocks = list(range(len(theirs)))
    panels = [
        (label, [Series(name, blocks, values[key]) for name, values in data.items()])
        for key, label in (("cover_length_ratio", f"cover length ratio, top {k}"), ("ranking_loss", "ranking loss"))
    ]
    return Finding(data, Figure("Order of attention", curves(panels, x_label="block")))


def compare_rank_of_token(models: dict[str, nn.Module], batch: dict[str, Any], token: int = 0) -> Finding[Any]:
    """Rank ratio of one token per head, block by block, for some models."""
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
    title = f"Rank of token {token} in every head"
    return Finding(data, Figure(title, curves([("rank ratio", series)], x_label="head, counted through the blocks")))


def _rows(counts: Tensor, attention: Tensor) -> Tensor:
    """Which keys count, for every row: [batch, 1, 1, key]; a causal row counts what it sees."""
    return counts[:, None, None, :].expand(-1, 1, attention.shape[-2], -1)


def _ranks(values: Tensor) -> Tensor:
    """1 for the largest of a row, 2 for the next; of equals the first comes first."""
    order = values.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(1, values.shape[-1] + 1, device=values.device).expand_as(values)
    return torch.empty_like(order).scatter_(-1, order, places)


def _mean(rows: Tensor, counts: Tensor) -> float:
    """Mean over heads and over the rows that count: [batch, heads, query] → number."""
    weight = counts[:, None, :].expand_as(rows)
    return float((rows * weight).sum() / weight.sum())
