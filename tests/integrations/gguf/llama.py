"""Asking a GGUF file by llama.cpp, where its build from PyPI is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest

if TYPE_CHECKING:
    from types import TracebackType

#: For tests that ask llama.cpp; those that read files by the package `gguf` run without.
needed = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="needs `xllamacpp`, a build of llama.cpp"
)
SERVING = Path(__file__).with_name("serving.py")


class Llama:
    """A file that is open in llama.cpp, which serves it on a port of this machine.

    Args:
        path: The file.
        embeds: Whether it gives vectors; else it writes.
    """

    def __init__(self, path: Path, embeds: bool = False) -> None:
        command = [sys.executable, str(SERVING), str(path), "embeds" if embeds else "writes"]
        quiet = {**os.environ, "GGML_NO_BACKTRACE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("serving "):
                self._address = line.split()[1]
                return self
        _, errors = self._process.communicate()
        pytest.fail(f"llama.cpp does not open the file: {errors[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def tokens(self, text: str) -> list[int]:
        """The tokens it makes of a text."""
        tokens: list[int] = self._ask("/tokenize", content=text, add_special=True)["tokens"]
        return tokens

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """The likeliest tokens after some."""
        settings = {"n_predict": count, "temperature": 0, "top_k": 1, "cache_prompt": False, "ignore_eos": True}
        likeliest: list[int] = self._ask("/completion", prompt=tokens, return_tokens=True, **settings)["tokens"]
        return likeliest

    def vector(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """The vector of some tokens, as it comes: not scaled to length 1."""
        (answer,) = self._ask("/embeddings", content=tokens, embd_normalize=-1)
        return np.array(answer["embedding"][0])

    def _ask(self, path: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._address + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
