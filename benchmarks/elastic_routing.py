"""Routing per request: a cascade by confidence against random routing that costs the same.

MiniLM made elastic on SST-2, once with nested neurons alone (its smallest size still takes 42 % of the FLOPs) and once
with nested blocks too. Thresholds are calibrated on dev for a mean compute of 0.3, 0.5 and 0.7 of the largest size's;
all are measured on test, which nothing was chosen on. Random routing draws between the two sizes that do best on test
itself, so the comparison leans towards it; the interval is that of a paired bootstrap over rows (95 %).

About 20 minutes of one core. Models lie in `--work`, and a run that is killed goes on from its checkpoint there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import RESULTS, add_work_option, keep, options, work_folder
from slimformer import elastic
from slimformer.errors import ConfigError
from slimformer.inference.routing import calibrate_route, evaluate_routed, write_route
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    import argparse

NAME = "elastic_routing"
#: What is nested: shares for S, M, L, XL.
NESTED: dict[str, dict[str, str]] = {
    "neurons": {"sizes": "0.125,0.25,0.5,1"},
    "neurons and blocks": {"sizes": "0.25,0.5,0.5,1", "depth_sizes": "0.34,0.5,0.67,1"},
}
COMPUTE = (0.3, 0.5, 0.7)


def train(nested: str, arguments: argparse.Namespace) -> Path:
    """An elastic MiniLM; the one that is there already, if it is."""
    out = arguments.work / nested.replace(" ", "-")
    if not (out / "slimformer.json").exists():
        elastic(
            model="minilm",
            task="sst2",
            data=str(arguments.data),
            out=str(out),
            max_length=48,
            batch_size=16,
            lr=1e-4,
            schedule="linear",
            warmup=0.1,
            clip=1.0,
            group_by_length=True,
            max_steps=2 if arguments.tiny else arguments.steps,
            limit=24 if arguments.tiny else None,
            eval_every=max(2, arguments.steps),
            save_every=500,
            seed=arguments.seed,
            threads=arguments.threads,
            resume=True,
            quiet=True,
            **NESTED[nested],
        )
    return out


def measure(artifact: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a cascade of each compute reaches on test, beside random routing and each size alone."""
    options = TaskOptions(data=str(arguments.data), limit=24 if arguments.tiny else None)
    rows: dict[str, Any] = {}
    for compute in COMPUTE:
        try:
            route, calibrated = calibrate_route(artifact, options, compute=compute)
        except ConfigError as error:  # the smallest size takes more
            rows[str(compute)] = str(error)
            continue
        file = write_route(route, arguments.work / "route.json", overwrite=True)
        measured = evaluate_routed(artifact, options, "test", route=file)["route"]
        rows["sizes on dev"] = calibrated["sizes"]
        rows[str(compute)] = {"sizes": route.sizes, "thresholds": route.thresholds, **measured}
    return rows


def main() -> None:
    """Train, calibrate and measure."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data" / "sst2")
    add_work_option(parser, NAME)
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    with work_folder(arguments):
        result = {nested: measure(train(nested, arguments), arguments) for nested in NESTED}
    keep(NAME, arguments, {"target": "0.5: the interval of the difference above 0", **result})


if __name__ == "__main__":
    main()
