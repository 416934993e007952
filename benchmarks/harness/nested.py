"""What pieces of work on nested sizes come to: gaps, lines between sizes, a scaling law."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from slimformer.methods.elastic.analysis import Run, fit_scaling_law

SIZES = {"S": 0.125, "M": 0.25, "L": 0.5, "XL": 1.0}
#: Runs that train all sizes at once.
TOGETHER = {"elastic": "sampled", "joint": "joint", "per-block": "per-block"}
VARIANTS = (*(f"separate {size}" for size in SIZES), *TOGETHER)
#: Runs that a scaling law of three numbers is fitted on at least.
LEAST_RUNS = 8


def gap(one: list[float], other: list[float]) -> dict[str, float]:
    """How much larger the mean of one sample is, pair by pair, with its standard error."""
    differences = np.subtract(one, other)
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return {"mean": round(float(differences.mean()), 4), "error": round(float(error), 4)}


def gaps(piece: dict[str, Any], separate: dict[str, list[float]]) -> dict[str, Any]:
    """How much worse each size of a model is than the separate one, on the same parts of test."""
    return {size: gap(parts, separate[size]) for size, parts in piece["parts"].items() if size in separate}


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
    tested = {v: pieces[f"test of {v}"] for v in VARIANTS if f"test of {v}" in pieces}
    table = {v: piece["loss"] for v, piece in tested.items()}
    separate = {size: row[size] for v, row in table.items() if v not in TOGETHER for size in row}
    parts = {size: part for v, piece in tested.items() if v not in TOGETHER for size, part in piece["parts"].items()}
    mixtures = {}
    for name, piece in pieces.items():
        if name.startswith("Mix'n'Match"):
            weights = {allocation: weights_of(plan, allocation) for allocation in piece["loss"]}
            excess = above_line(weights, piece["loss"], sizes)
            mean = round(float(np.mean(list(excess.values()))), 4)
            mixtures[name.removeprefix("Mix'n'Match of ")] = {"mean": mean, "above_line": excess}
    result = {
        "rates": {v: pieces[v]["rates"][v] for v in VARIANTS if v in pieces},
        "loss": {**({"separate": separate} if separate else {}), **{v: table[v] for v in TOGETHER if v in table}},
        "gap": {v: gaps(tested[v], parts) for v in TOGETHER if v in tested},
        "mixtures": mixtures,
        "search": pieces.get("search"),
        "consistency": {
            name.removeprefix("consistency of "): piece["size"]
            for name, piece in pieces.items()
            if name.startswith("consistency of ")
        },
    }
    return {name: value for name, value in result.items() if value}
