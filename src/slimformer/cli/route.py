"""`slimformer route`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import ConfigFile, Json, Overwrite, print_json, print_line, print_table
from slimformer.errors import UsageError
from slimformer.files import as_path
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from slimformer.inference.routing import Cascade, Confidence, LatencyRoute


def make_route(
    artifact: str,
    *,
    out: str,
    options: Annotated[TaskOptions, Parameter(name="*")] = TaskOptions(),  # noqa: B008 (frozen)
    split: str = "dev",
    compute: float | None = None,
    accuracy: float | None = None,
    max_latency: float | None = None,
    confidence: str = "margin",
    lengths: str = "16,32,64,128",
    batch_size: int = 32,
    config: ConfigFile = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write which size of an elastic artifact answers which request, for `--route` of `predict` and `evaluate`.

    Args:
        artifact: The folder of the elastic artifact.
        out: File for the route, JSON.
        split: Held-out split that thresholds are calibrated on.
        compute: Mean FLOPs of an answer at most, of the largest size's, such as 0.5: a cascade, in which a larger size
            answers what a smaller one is not sure of.
        accuracy: Share of the answers to be right at least, with as few FLOPs as possible: a cascade too.
        max_latency: Milliseconds of a request at most: the largest size that is fast enough for its length, measured
            on this machine.
        confidence: What a cascade asks for: `margin` between the two best probabilities, or the best `probability`.
        lengths: Lengths in tokens at which latencies are measured, joined by commas.
        batch_size: Items per forward; changes speed and memory only.
    """
    from slimformer.inference.routing import check_place, write_route

    targets = {"compute": compute, "accuracy": accuracy, "max-latency": max_latency}
    chosen = [name for name, value in targets.items() if value is not None]
    if len(chosen) != 1:
        named = " and ".join(f"`--{name}`" for name in chosen) or "nothing"
        raise UsageError(f"{named} is given to route by; give one of `--compute`, `--accuracy` and `--max-latency`")
    _check_target(chosen[0], targets[chosen[0]])
    check_place(as_path(out), overwrite)
    route: Cascade | LatencyRoute
    if max_latency is not None:
        route, measured = _latencies(artifact, max_latency, lengths)
    else:
        route, measured = _cascade(
            artifact, TaskOptions.read(config, options.given()), split, confidence, batch_size, compute, accuracy
        )
    write_route(route, out, overwrite)
    if as_json:
        print_json({"out": out, **route.model_dump(), "measured": measured})
        return
    print_table(*measured.pop("table"))
    print_line(f"{out}: {measured['summary']}")


def _check_target(name: str, value: float | None) -> None:
    most = None if name == "max-latency" else 1
    if value is None or not 0 < value <= (most or float("inf")) or value == float("inf"):
        raise UsageError(f"`--{name}` is `{value}`; give a number above 0{'' if most is None else ' up to 1'}")


def _cascade(
    artifact: str,
    options: TaskOptions,
    split: str,
    confidence: str,
    batch_size: int,
    compute: float | None,
    accuracy: float | None,
) -> tuple[Cascade, dict[str, Any]]:
    from slimformer.inference.routing import calibrate_route

    if confidence not in ("margin", "probability"):
        raise UsageError(f"`--confidence` is `{confidence}`; give `margin` or `probability`")
    by: Confidence = "margin" if confidence == "margin" else "probability"
    route, measured = calibrate_route(
        artifact, options, split, compute=compute, accuracy=accuracy, confidence=by, batch_size=batch_size
    )
    rows = [[size, f"{each['accuracy']:.4f}", f"{each['compute']:.3f}"] for size, each in measured["sizes"].items()]
    rows.append(["cascade", f"{measured['accuracy']:.4f}", f"{measured['compute']:.3f}"])
    stages = ", then ".join(
        [f"{size} from {limit:.4f}" for size, limit in zip(route.sizes[:-1], route.thresholds, strict=True)]
        + [route.sizes[-1]]
    )
    table = (f"on {split}, which thresholds were chosen by", ["size", "accuracy", "FLOPs of the largest's"], rows)
    return route, {**measured, "table": table, "summary": f"{stages} ({confidence})"}


def _latencies(artifact: str, max_latency: float, lengths: str) -> tuple[LatencyRoute, dict[str, Any]]:
    from slimformer.cli.bench import numbers
    from slimformer.inference.routing import latency_route

    route = latency_route(artifact, max_latency, numbers("lengths", lengths))
    rows = [[size, *(f"{each:.2f}" for each in row)] for size, row in zip(route.sizes, route.latency_ms, strict=True)]
    picks = ", ".join(f"{route.sizes[route.choose(length)]} up to {length} tokens" for length in route.lengths)
    columns = ["size", *(f"{length} tokens, ms" for length in route.lengths)]
    return route, {"table": ("measured at batch 1", columns, rows), "summary": f"{picks} within {max_latency:g} ms"}
