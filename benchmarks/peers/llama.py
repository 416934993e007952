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
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PACKAGE = "xllamacpp"


class Answer(NamedTuple):
    """New tokens, and the seconds they took with those of the prompt, without the way to the server and back."""

    tokens: list[int]
    seconds: float


class Llama:
    """A GGUF file in llama.cpp.

    Args:
        address: Where it is served.
    """

    def __init__(self, address: str) -> None:
        self._address = address

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


@contextmanager
def opened(path: Path, threads: int, length: int) -> Iterator[Llama]:
    """A GGUF file in llama.cpp, with its defaults but for the number of threads.

    Args:
        path: The file.
        threads: Threads of a forward, of one token or of many.
        length: Tokens of the longest text with its prompt.
    """
    # What it polls with between two requests would disturb who is timed next; `OMP_NUM_THREADS` is of torch.
    own = {**os.environ, "GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    own.pop("OMP_NUM_THREADS", None)
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, __file__, str(path), str(threads), str(length)]
    with subprocess.Popen(command, text=True, env=own, **pipes) as server:
        try:
            told = next((line for line in server.stdout or () if line.startswith("serving ")), None)
            if told is None:
                raise SystemExit(f"llama.cpp does not open the file: {server.communicate()[1][-2000:]}")
            yield Llama(told.split()[1])
        finally:
            server.kill()


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
