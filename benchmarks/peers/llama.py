"""llama.cpp, by its build on PyPI (`xllamacpp`): plain greedy decoding, timed by its own clock.

Run as a program, it serves a GGUF file until its standard input ends: `python llama.py FILE THREADS LENGTH`. That is a
process of its own, since llama.cpp ends the one it is in where a file is not as it expects.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

PACKAGE = "xllamacpp"


class Answer(NamedTuple):
    """New tokens, and the seconds they took with those of the prompt, without the way to the server and back."""

    tokens: list[int]
    seconds: float


class Llama:
    """A GGUF file in llama.cpp, with its defaults but for the number of threads.

    Args:
        path: The file.
        threads: Threads of a forward, of one token or of many.
        length: Tokens of the longest text with its prompt.
    """

    def __init__(self, path: Path, threads: int, length: int) -> None:
        # What it polls with between two requests would disturb who is timed next; `OMP_NUM_THREADS` is of torch.
        own = {**os.environ, "GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(path), str(threads), str(length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in own.items() if name != "OMP_NUM_THREADS"},
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("serving "):
                self._address = line.split()[1]
                return self
        _, errors = self._process.communicate()
        raise SystemExit(f"llama.cpp does not open the file: {errors[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def write(self, ids: Sequence[int], new: int) -> Answer:
        """The likeliest tokens after a prompt, which is read anew each time."""
        asked = {"prompt": list(ids), "n_predict": new, "temperature": 0, "top_k": 1, "samplers": ["top_k"]}
        asked |= {"cache_prompt": False, "ignore_eos": True, "return_tokens": True}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._address}/completion", json.dumps(asked).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            said = json.load(answer)
        timings = said["timings"]
        return Answer(said["tokens"], (timings["prompt_ms"] + timings["predicted_ms"]) / 1e3)


def why_absent() -> str | None:
    """Why there is no such peer; None where there is one."""
    missing = [name for name in (PACKAGE, "gguf") if importlib.util.find_spec(name) is None]
    return f"`{'` and `'.join(missing)}` not installed" if missing else None


def serve(path: str, threads: int, length: int) -> None:
    """Serve a file until the standard input ends."""
    xllamacpp: Any = importlib.import_module(PACKAGE)
    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.n_ctx, settings.n_parallel, settings.n_gpu_layers = length, 1, 0
    settings.fit_params, settings.verbosity = False, -1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(settings)
    print(f"serving {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
