"""The same work for every contender of `distill_speed.py`, and what is reported of it.

Imports nothing but torch, so that it runs in the environment of any of them.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

#: Steps that are not counted: caches fill and memory is claimed.
WARM_UP = 2


@dataclass(frozen=True)
class Work:
    """What to distil, on what, for how long; `baseline` is the memory in use before anything was loaded."""

    teacher: str
    layers: int
    hidden: int
    attention_heads: int
    heads: int
    texts: str
    length: int
    batch: int
    steps: int
    threads: int
    teacher_dtype: str = "float32"
    baseline: int = 0

    @classmethod
    def read(cls) -> Work:
        """From the command line's one argument, JSON."""
        work = cls(**json.loads(sys.argv[1]), baseline=peak_bytes())
        torch.set_num_threads(work.threads)
        torch.manual_seed(0)
        return work

    def read_texts(self) -> list[str]:
        """One text a line."""
        return Path(self.texts).read_text(encoding="utf-8").splitlines()

    def student_config(self, teacher: Any) -> Any:
        """The teacher's config with the student's sizes."""
        config = copy.deepcopy(teacher)
        config.num_hidden_layers, config.hidden_size = self.layers, self.hidden
        config.num_attention_heads, config.intermediate_size = self.attention_heads, 4 * self.hidden
        return config


def peak_bytes() -> int:
    """The most memory this process has held so far; what `getrusage` says would begin with its parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def report(work: Work, seconds: list[float], tokens: list[int]) -> None:
    """Print tokens per second, padding not counted, and the memory claimed since the start."""
    rates = [count / spent for count, spent in zip(tokens, seconds, strict=True)][WARM_UP:]
    result = {
        "tokens_per_second": round(sum(tokens[WARM_UP:]) / sum(seconds[WARM_UP:]), 1),
        "median_tokens_per_second": round(statistics.median(rates), 1),
        "peak_mib": round((peak_bytes() - work.baseline) / 2**20, 1),
    }
    print(json.dumps(result))
