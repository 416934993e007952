"""Asking a GGUF file by llama.cpp, where its build from PyPI is installed."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

REASON = "needs the package `xllamacpp`, a build of llama.cpp"


class Llama:
    """A file that is open in llama.cpp, which serves it on a port of this machine.

    Args:
        path: The file.
        embeds: Whether it gives vectors; else it writes.
    """

    def __init__(self, path: Path, embeds: bool = False) -> None:
        xllamacpp = pytest.importorskip("xllamacpp", reason=REASON)
        settings = xllamacpp.CommonParams()
        settings.model.path = str(path)
        settings.n_ctx = settings.n_batch = settings.n_ubatch = 256
        settings.n_parallel, settings.n_gpu_layers = 1, 0
        settings.warmup = settings.fit_params = False
        settings.verbosity = -1
        settings.embedding = embeds
        settings.cpuparams.n_threads = 1
        # Keys and values in 16 bits, its default, would be rounding of its own.
        settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._server = xllamacpp.Server(settings)

    def tokens(self, text: str) -> list[int]:
        """The tokens it makes of a text."""
        tokens: list[int] = self._ask("/tokenize", content=text, add_special=True)["tokens"]
        return tokens

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """The likeliest tokens after some."""
        settings = {"n_predict": count, "temperature": 0, "top_k": 1, "cache_prompt": False, "ignore_eos": True}
        found: list[int] = self._ask("/completion", prompt=tokens, return_tokens=True, **settings)["tokens"]
        return found

    def vector(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """The vector of some tokens, as it comes: not scaled to length 1."""
        (answer,) = self._ask("/embeddings", content=tokens, embd_normalize=-1)
        return np.array(answer["embedding"][0])

    def _ask(self, path: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._server.listening_address + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
