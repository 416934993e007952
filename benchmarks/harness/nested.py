"""What pieces of work on nested sizes come to: gaps, lines between sizes, predictors of loss, a scaling law."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import Ridge

from slimformer.methods.elastic.analysis import Run, fit_scaling_law

SIZES = {"S": 0.125, "M": 0.25, "L": 0.5, "XL": 1.0}
#: Runs that train all sizes at once.
TOGETHER = {"elastic": "sampled", "joint": "joint", "per-block": "per-block"}
VARIANTS = (*(f"separate {size}" for size in SIZES), *TOGETHER)
#: Share of the pairs that a predictor is fitted on; the rest is held out (MatFormer, arXiv 2310.07707, appendix).
FITTED = 0.6
#: Runs that a scaling law of three numbers is fitted on at least.
LEAST_RUNS = 8


def gap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> dict[str, float]:
    """How much larger the mean of one sample is, pair by pair, with its standard error."""
    differences = one - other
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return {"mean": round(float(differences.mean()), 4), "error": round(float(error), 4)}


def above_line(weights: dict[str, float], losses: dict[str, float], sizes: list[str]) -> dict[str, float]:
    """How far the loss of each mixture lies above the line between the two sizes around it.

    Args:
        weights: Weights of each allocation.
        losses: Loss of each allocation, the sizes among them.
        sizes: Names of the sizes, smallest first.
    """
    excess = {}
    for small, large in pairwise(sizes):
        for name, weight in weights.items():
            if name not in sizes and weights[small] < weight < weights[large]:
                share = (weight - weights[small]) / (weights[large] - weights[small])
                excess[name] = round(losses[name] - (1 - share) * losses[small] - share * losses[large], 4)
    return excess


def predictor_quality(pairs: dict[str, float], sizes: list[str]) -> dict[str, float]:
    """How well the losses of allocations are predicted from the size of each block, on pairs that are held out."""
    blocks = max(allocation.count(",") + 1 for allocation in pairs)  # one that is alike in all of them is one name
    spelled = [each.split(",") if "," in each else [each] * blocks for each in pairs]
    rows = [[size == name for size in allocation for name in sizes] for allocation in spelled]
    features, losses = np.array(rows, float), np.array(list(pairs.values()))
    fitted = round(FITTED * len(losses))  # allocations come in random order
    model = Ridge(alpha=1e-3).fit(features[:fitted], losses[:fitted])
    predicted, actual = model.predict(features[fitted:]), losses[fitted:]
    return {
        "pairs": len(losses),
        "rank_correlation": round(float(spearmanr(predicted, actual).statistic), 4),
        "squared_error": float(f"{np.mean((predicted - actual) ** 2):.2e}"),
    }


def block_weights(hidden: int, share: float) -> int:
    """Weights of one block without embeddings: attention, the three matrices of the FFN, two norms."""
    return 4 * hidden * hidden + 3 * hidden * round(4 * hidden * share) + 2 * hidden


def weights_of(plan: str, allocation: str) -> int:
    """Weights of an allocation without embeddings, by the names of plan and allocation."""
    hidden, layers = (int(number) for number in plan.partition(",")[0].split("x"))
    blocks = allocation.split(",") if "," in allocation else [allocation] * layers
    return sum(block_weights(hidden, SIZES[size]) for size in blocks)


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """For each plan: rates, losses, gaps, mixtures, predictor and consistency; over all plans, the scaling law."""
    by_plan: dict[str, dict[str, Any]] = {}
    for name, piece in done.items():
        plan, _, rest = name.partition(": ")
        by_plan.setdefault(plan, {})[rest] = piece
    laws: dict[str, list[Run]] = {"separate": [], "elastic": []}
    for plan, pieces in by_plan.items():
        tokens = int(plan.split(", ")[1].split()[0])
        for kind, runs in laws.items():
            tested = [pieces[f"test of {v}"]["loss"] for v in VARIANTS if f"test of {v}" in pieces and kind in v]
            runs += [Run(weights_of(plan, size), tokens, loss) for each in tested for size, loss in each.items()]
    enough = all(len(runs) >= LEAST_RUNS for runs in laws.values())
    fits = {kind: vars(fit_scaling_law(runs)) for kind, runs in laws.items()} if enough else {}
    return {
        "target": {"gap": {"S": 0, "M": 0, "L": 0, "XL": 0.02}, "rank_correlation": 0.9},
        "plans": {plan: summarize(plan, pieces) for plan, pieces in by_plan.items()},
        **({"scaling_law": fits} if fits else {}),
        "cpu_hours": round(sum(piece["cpu_seconds"] for piece in done.values()) / 3600, 2),
    }


def summarize(plan: str, pieces: dict[str, Any]) -> dict[str, Any]:
    """The table of one plan, as far as its pieces are there."""
    sizes = list(SIZES)
    table = {v: pieces[f"test of {v}"]["loss"] for v in VARIANTS if f"test of {v}" in pieces}
    separate = {size: row[size] for v, row in table.items() if v not in TOGETHER for size in row}
    mixtures = {}
    for name, piece in pieces.items():
        if name.startswith("Mix'n'Match"):
            weights = {allocation: weights_of(plan, allocation) for allocation in piece["loss"]}
            excess = above_line(weights, piece["loss"], sizes)
            mean = round(float(np.mean(list(excess.values()))), 4)
            mixtures[name.removeprefix("Mix'n'Match of ")] = {"mean": mean, "above_line": excess}
    pairs = {
        k: loss for name, piece in pieces.items() if name.startswith("pairs ") for k, loss in piece["loss"].items()
    }
    result = {
        "rates": {v: pieces[v]["rate"] for v in VARIANTS if v in pieces},
        "loss": {**({"separate": separate} if separate else {}), **{v: table[v] for v in TOGETHER if v in table}},
        "gap": {v: pieces[f"gaps of {v}"]["gap"] for v in TOGETHER if f"gaps of {v}" in pieces},
        "mixtures": mixtures,
        "predictor": predictor_quality(pairs, sizes) if len(pairs) > 3 else {},
        "consistency": {
            name.removeprefix("consistency of "): piece["size"]
            for name, piece in pieces.items()
            if name.startswith("consistency of ")
        },
    }
    return {name: value for name, value in result.items() if value}
