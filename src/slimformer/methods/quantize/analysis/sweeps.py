"""What a setting does to the result: temperature (the paper's Table 1), distilled blocks, and β of unified losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from slimformer import quantize
from slimformer.errors import ConfigError
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.methods.quantize.config import QuantizeConfig

#: The temperatures of the paper.
TEMPERATURES = (1.0, 5.0, 10.0, 20.0)
#: Its weights of the second of two losses, and the two ways round.
BETAS = tuple(tenths / 10 for tenths in range(1, 10))
Direction = Literal["map+output", "output+map"]
DIRECTIONS: tuple[Direction, ...] = ("map+output", "output+map")

Rows = list[dict[str, Any]]


def temperature_sweep(
    config: QuantizeConfig, temperatures: Sequence[float] = TEMPERATURES, quiet: bool = True
) -> Finding[Rows]:
    """Quantize with attention maps at several temperatures, everything else alike; nothing is saved."""
    rows = [_run(config, quiet, at, kd="map", temperature=at) for at in temperatures]
    return _finding(rows, "temperature")


def layer_sweep(config: QuantizeConfig, counts: Sequence[int], blocks: int, quiet: bool = True) -> Finding[Rows]:
    """Quantize with only so many blocks distilled, evenly spaced, everything else alike; nothing is saved.

    Args:
        config: The settings.
        counts: Numbers of blocks to try.
        blocks: Blocks of the model.
        quiet: Say nothing while training.
    """
    chosen = [spaced_blocks(count, blocks) for count in counts]
    return _finding([_run(config, quiet, len(each), distil_layers=_names(each)) for each in chosen], "distilled blocks")


def spaced_blocks(count: int, blocks: int) -> list[int]:
    """So many of the blocks, as far apart from each other as can be, the last one included."""
    if not 1 <= count <= blocks:
        raise ConfigError(f"{count} blocks cannot be distilled of a model with {blocks}; give 1 to {blocks}")
    return [(number + 1) * blocks // count - 1 for number in range(count)]


def beta_sweep(
    config: QuantizeConfig,
    betas: Sequence[float] = BETAS,
    directions: Sequence[Direction] = DIRECTIONS,
    quiet: bool = True,
) -> Finding[Rows]:
    """Quantize with maps and outputs together, the second of them weighted by each β; nothing is saved.

    Args:
        config: The settings.
        betas: Weights to try.
        directions: Which of the two is weighted: `map+output` weights outputs, `output+map` maps.
        quiet: Say nothing while training.
    """
    rows = [{**_run(config, quiet, beta, kd=kd, beta=beta), "kd": kd} for kd in directions for beta in betas]
    return _finding(rows, "beta")


def _run(config: QuantizeConfig, quiet: bool, value: float, **changes: Any) -> dict[str, Any]:
    result = quantize(config.make({**config.given(), "out": None, **changes}), quiet=quiet)
    return {"value": value, "metrics": result.metrics, "seconds": result.seconds}


def _finding(rows: Rows, setting: str) -> Finding[Rows]:
    """The rows with a picture of their first metric, a line for each kind of knowledge that was tried."""
    measure = next(iter(rows[0]["metrics"]))
    lines = []
    for kind in dict.fromkeys(row.get("kd", measure) for row in rows):
        own = [row for row in rows if row.get("kd", measure) == kind]
        lines.append(Series(kind, [row["value"] for row in own], [row["metrics"][measure] for row in own]))
    return Finding(rows, Figure(f"What {setting} does", curves([(measure, lines)], x_label=setting)))


def _names(blocks: Sequence[int]) -> str:
    return ",".join(map(str, blocks))
