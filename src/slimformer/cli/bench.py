"""`slimformer bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import Json, SizeFlags, human_bytes, print_json, print_table
from slimformer.counts import MOST
from slimformer.errors import UsageError


def bench_models(
    *models: str,
    batch: str = "1",
    length: str = "128",
    threads: int | None = None,
    seconds: float = 2.0,
    device: str | None = None,
    flags: Annotated[SizeFlags, Parameter(name="*")] = SizeFlags(),  # noqa: B008 (frozen)
    as_json: Json = False,
) -> None:
    """Measure size, memory, latency and throughput of models on this machine, on random inputs.

    Args:
        models: Artifacts, folders, Hub names, aliases or ONNX files.
        batch: Batch sizes to time, joined by commas.
        length: Lengths in tokens, joined by commas; every batch size is timed at every length. Images have their own.
        threads: CPU threads; by default what PyTorch chooses.
        seconds: Time to spend on each shape.
        device: Where to run, such as `cuda`; by default the CPU.
    """
    from slimformer.inference.bench import bench

    if not models:
        raise UsageError("no model given; name at least one artifact, folder, Hub name or alias")
    shapes = [(size, tokens) for size in numbers("batch", batch) for tokens in numbers("length", length)]
    timing: dict[str, Any] = {"threads": threads, "seconds": seconds, "device": device}
    results = [bench(model, shapes, **timing, **asdict(flags)) for model in models]
    if as_json:
        print_json({"models": results})
    else:
        _print(results)


def numbers(flag: str, text: str) -> list[int]:
    """The whole numbers of a flag."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or not 1 <= len(part) <= len(str(MOST)) or not 1 <= int(part) <= MOST:
            raise UsageError(f"`--{flag}` is `{text}`; give whole numbers from 1 to {MOST}, joined by commas")
    return [int(part) for part in parts]


def _print(results: list[dict[str, Any]]) -> None:
    rows = [
        [
            result["model"] if result["size"] is None else f"{result['model']} at {result['size']}",
            f"{result['parameters']:,}",
            human_bytes(result["bytes"]),
            human_bytes(result["peak_memory_bytes"]),
            f"{shape['batch']} x {shape['length']}",
            f"{shape['latency_ms']['p50']:.1f}",
            f"{shape['latency_ms']['p95']:.1f}",
            f"{shape['examples_per_second']:.1f}",
        ]
        for result in results
        for shape in result["shapes"]
    ]
    columns = ["model", "parameters", "file", "memory", "shape", "p50 ms", "p95 ms", "examples/s"]
    count = results[0]["threads"]
    print_table(f"{count} thread{'' if count == 1 else 's'}, {results[0]['device']}", columns, rows)
