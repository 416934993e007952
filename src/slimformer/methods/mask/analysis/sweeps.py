"""One setting changed, everything else as it is: initial sparsity (Fig. 1) and the blocks that are masked (Fig. 2)."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from slimformer import mask, models
from slimformer.anatomy import Anatomy
from slimformer.methods.mask.config import MaskConfig
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Sequence

#: From very few to nearly all weights dropped at the start, denser where it works.
SPARSITIES = (0.01, 0.03, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.65, 0.8, 0.95)


def sparsity_sweep(
    config: MaskConfig, sparsities: Sequence[float] = SPARSITIES, seeds: Sequence[int] = (0,), quiet: bool = True
) -> Finding[dict[str, Any]]:
    """Train with several shares of weights dropped at the start.

    Args:
        config: The settings; nothing is saved.
        sparsities: The shares.
        seeds: Seeds to average over.
        quiet: Say nothing while training.
    """
    runs = [{"initial_sparsity": share, **_run(config, seeds, quiet, initial_sparsity=share)} for share in sparsities]
    line = Series("mask", [run["initial_sparsity"] for run in runs], [run["mean"] for run in runs])
    metric = runs[0]["metric"]
    svg = curves([(f"{metric} on dev", [line])], x_label="share of weights dropped at the start")
    caption = f"Task {config.task}, mean over seeds {', '.join(map(str, seeds))}."
    return Finding({"metric": metric, "runs": runs}, Figure("Initial sparsity", svg, caption))


def layer_sweep(
    config: MaskConfig, counts: Sequence[int] | None = None, seeds: Sequence[int] = (0,), quiet: bool = True
) -> Finding[dict[str, Any]]:
    """Train with more and more blocks masked, from the top down and from the bottom up.

    Args:
        config: The settings; nothing is saved, and which blocks they name does not count.
        counts: How many blocks to mask; by default from one to all.
        seeds: Seeds to average over.
        quiet: Say nothing while training.
    """
    config.require("model")
    assert config.model is not None
    counts = counts or range(1, len(Anatomy.of(models.load_skeleton(config.model)).blocks) + 1)
    runs = [
        {"direction": name, "blocks": count, **_run(config, seeds, quiet, **{name: count})}
        for name in ("top_down", "bottom_up")
        for count in counts
    ]
    lines = []
    for name in ("top_down", "bottom_up"):
        own = [run for run in runs if run["direction"] == name]
        lines.append(Series(name.replace("_", "-"), [run["blocks"] for run in own], [run["mean"] for run in own]))
    metric = runs[0]["metric"]
    svg = curves([(f"{metric} on dev", lines)], x_label="blocks masked")
    caption = f"Task {config.task}, mean over seeds {', '.join(map(str, seeds))}."
    return Finding({"metric": metric, "runs": runs}, Figure("Which blocks are masked", svg, caption))


def _run(config: MaskConfig, seeds: Sequence[int], quiet: bool, **changes: Any) -> dict[str, Any]:
    dropped = {"out", "blocks", "top_down", "bottom_up"} if changes.keys() & {"top_down", "bottom_up"} else {"out"}
    given = {name: value for name, value in config.given().items() if name not in dropped}
    values = []
    for seed in seeds:
        result = mask(MaskConfig.make({**given, **changes, "seed": seed}), quiet=quiet)
        metric, value = next(iter(result.metrics.items()))
        values.append(value)
    return {"metric": metric, "mean": statistics.mean(values), "values": values}
