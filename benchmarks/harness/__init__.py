"""What every benchmark shares: options, timing of alternatives in turn, and a result file that says how it was made."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

RESULTS = Path(__file__).parents[1] / "results"
#: How the names of instruction sets begin that change how fast products are, and their last bits.
INSTRUCTIONS = ("fma", "avx", "amx")


def _use_checkout() -> None:
    """Import slimformer from the checkout that the benchmark lies in.

    An editable installation of another one would win over PYTHONPATH, and change what is measured while it runs.
    """
    file = RESULTS.parents[1] / "src" / "slimformer" / "__init__.py"
    if "slimformer" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location("slimformer", file, submodule_search_locations=[str(file.parent)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["slimformer"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_use_checkout()


def options(description: str) -> argparse.ArgumentParser:
    """Options of every benchmark; `--tiny` only shows that it still runs and keeps no result."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--tiny", action="store_true", help="smallest size, nothing written: does it still run?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def training_options(description: str) -> argparse.ArgumentParser:
    """Options of benchmarks that train."""
    parser = options(description)
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16, where the processor is faster so")
    return parser


def add_work_option(parser: argparse.ArgumentParser, name: str) -> None:
    """The folder that keeps models between runs."""
    parser.add_argument("--work", type=Path, default=RESULTS.parent / "work" / name, help="keeps models between runs")


@contextmanager
def work_folder(arguments: argparse.Namespace) -> Iterator[None]:
    """Give a tiny run a new folder as `--work`, which goes with it: what another run left there cannot stop it."""
    if not arguments.tiny:
        yield
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.work = Path(scratch)
        yield


def trained_in(arguments: argparse.Namespace) -> str:
    """The numbers that models are trained in: runs on machines of several kinds may lie in one result."""
    return "bfloat16" if arguments.bf16 else "float32"


def in_turn(
    runs: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1, pause: float = 0.0
) -> dict[str, float]:
    """Median seconds of each alternative, run one after the other in every round: noise hits all alike.

    What takes milliseconds wants a pause of so many seconds before each: threads of the alternative before look for
    more work for a while. `turns.timed_apart` also calls each without a clock first.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(warm_up + rounds):
        for name, run in runs.items():
            time.sleep(pause)
            start = time.perf_counter()
            run()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def keep(name: str, arguments: argparse.Namespace, result: Mapping[str, Any], peers: Sequence[str] = ()) -> None:
    """Print a result and, unless tiny, write it to benchmarks/results/NAME.json."""
    print(json.dumps(result, indent=2))
    if not arguments.tiny:
        write(name, arguments, result, peers)


def write(name: str, arguments: argparse.Namespace, result: Mapping[str, Any], peers: Sequence[str] = ()) -> None:
    """Write a result to benchmarks/results/NAME.json, whole or not at all; `peers` are packages it compares with."""
    _write(name, {"benchmark": name, **made_by(arguments, peers), "result": result})


def keep_parts(name: str, arguments: argparse.Namespace, parts: Mapping[tuple[str, ...], Mapping[str, Any]]) -> None:
    """Print parts of a result and, unless tiny, put them into what is kept, each with how it was made itself.

    All else in the file stays as it is: that was measured by another command, maybe on another machine.

    Args:
        name: The benchmark.
        arguments: Its options.
        parts: Where each part belongs in the result, as keys from the outside in → what it is.
    """
    print(json.dumps({" / ".join(place): part for place, part in parts.items()}, indent=2))
    if arguments.tiny:
        return
    made = made_by(arguments)
    path = RESULTS / f"{name}.json"
    record = json.loads(path.read_text()) if path.exists() else {"benchmark": name, **made, "result": {}}
    for place, part in parts.items():
        inner = record["result"]
        for key in place[:-1]:
            inner = inner.setdefault(key, {})
        inner[place[-1]] = {**part, "made": made}
    _write(name, record)


def made_by(arguments: argparse.Namespace, peers: Sequence[str] = ()) -> dict[str, Any]:
    """How a result was made: command, seed, versions of packages and the machine."""
    packages = ("slimformer", "torch", "transformers", "numpy", *filter(importlib.util.find_spec, peers))
    script = Path(sys.argv[0]).name
    return {
        "command": shlex.join(["python", f"benchmarks/{script}", *map(_without_folders, sys.argv[1:])]),
        "seed": arguments.seed,
        "versions": {package: version(package) for package in packages},
        "machine": {
            "processor": processor(),
            "instructions": [flag for flag in _cpuinfo("flags").split() if flag.startswith(INSTRUCTIONS)],
            "cores": os.cpu_count(),
            "threads": arguments.threads,
            "system": platform.platform(),
            "python": platform.python_version(),
        },
    }


def _write(name: str, record: Mapping[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    stage = RESULTS / f".{name}.{os.getpid()}"
    stage.write_text(json.dumps(record, indent=2) + "\n")
    stage.replace(RESULTS / f"{name}.json")


def _without_folders(argument: str) -> str:
    """A path by its last name: where it lay on some machine is of no use on another."""
    return Path(argument).name if argument.startswith("/") else argument


def kept(name: str) -> dict[str, Any]:
    """The result kept last, for benchmarks that add to it run by run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text())["result"] if path.exists() else {}


def processor() -> str:
    """What the processor calls itself."""
    return _cpuinfo("model name") or platform.processor()


def _cpuinfo(name: str) -> str:
    """A line of /proc/cpuinfo; empty where there is none."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""
