"""What a setting does to the result: the temperature of maps (the paper's Table 1), the number of distilled blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer import quantize
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.methods.quantize.config import QuantizeConfig

#: The temperatures of the paper.
TEMPERATURES = (1.0, 5.0, 10.0, 20.0)

Rows = list[dict[str, Any]]


def temperature_sweep(
    config: QuantizeConfig, temperatures: Sequence[float] = TEMPERATURES, quiet: bool = True
) -> Finding[Rows]:
    """Quantize with attention maps at several temperatures, everything else alike; nothing is saved."""
    rows = [_run(config, quiet, at, kd="map", temperature=at) for at in temperatures]
    return _finding(rows, "temperature")


def layer_sweep(config: QuantizeConfig, counts: Sequence[int], blocks: int, quiet: bool = True) -> Finding[Rows]:
    """Quantize with only so many blocks distilled, the last ones, everything else alike; nothing is saved.

    Args:
        config: The settings.
        counts: Numbers of blocks to try.
        blocks: Blocks of the model.
        quiet: Say nothing while training.
    """
    rows = []
    for count in counts:
        last = ",".join(str(index) for index in range(blocks - count, blocks))
        rows.append(_run(config, quiet, count, distil_layers=last))
    return _finding(rows, "distilled blocks")


def _run(config: QuantizeConfig, quiet: bool, value: float, **changes: Any) -> dict[str, Any]:
    result = quantize(config.make({**config.given(), "out": None, **changes}), quiet=quiet)
    return {"value": value, "metrics": result.metrics, "seconds": result.seconds}


def _finding(rows: Rows, setting: str) -> Finding[Rows]:
    measure = next(iter(rows[0]["metrics"]))
    line = Series(measure, [row["value"] for row in rows], [row["metrics"][measure] for row in rows])
    return Finding(rows, Figure(f"What {setting} does", curves([(measure, [line])], x_label=setting)))
