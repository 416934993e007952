"""A tiny run of every benchmark: `python benchmarks/harness/tiny.py`.

Each is a fork of one process that has imported what they all import, which would take longer than most of them.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
AT_ONCE = 2
IMPORTS = ("sklearn.metrics", "torch", "transformers.models.bert.modeling_bert", "slimformer.train.loop.trainer")


def start(script: Path) -> int:
    """The number of a process that runs a script as if it had been called."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        sys.argv = [str(script), "--tiny"]
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """All scripts, two at a time; those that fail are named."""
    scripts = [Path(name) for name in sys.argv[1:]] or sorted(BENCHMARKS.glob("[a-z]*.py"))
    sys.path[0] = str(BENCHMARKS)
    for name in IMPORTS:
        import_module(name)
    running: dict[int, tuple[str, float]] = {}
    failed = []
    while scripts or running:
        while scripts and len(running) < AT_ONCE:
            script = scripts.pop(0).resolve()
            running[start(script)] = script.name, time.monotonic()
        ended, status = os.wait()
        name, began = running.pop(ended)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        if status != 0:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
