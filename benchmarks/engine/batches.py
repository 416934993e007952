"""Shapes of models, and what they are asked."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from transformers import AutoTokenizer

from harness import RESULTS
from slimformer import models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.runtime.onnx import Array

DATA = RESULTS.parents[2] / "shared" / "data"
SHAPES = {
    "MiniLM-L6": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "BERT-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
#: As small as blocks of 128 allow.
TINY = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
SIZES = ((1, 16), (1, 128), (8, 128))
TEXTS = 32


@dataclass(frozen=True)
class Batch:
    """Sequences of tokens, and the same filled up to the longest, as most runtimes want them."""

    sequences: Sequence[Sequence[int]]

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Tokens and mask, [sequences, tokens of the longest]."""
        longest = max(map(len, self.sequences))
        ids = np.array([[*each, *[0] * (longest - len(each))] for each in self.sequences])
        mask = np.array([[1] * len(each) + [0] * (longest - len(each)) for each in self.sequences])
        return {"input_ids": ids, "attention_mask": mask}

    @property
    def tokens(self) -> int:
        """How many there are without padding."""
        return sum(map(len, self.sequences))

    @property
    def padded(self) -> int:
        """How many there are with it."""
        return int(self.arrays["input_ids"].size)


def drawn(size: int, length: int, seed: int = 0) -> Batch:
    """Tokens by chance, all sequences alike in length."""
    return Batch(np.random.default_rng(seed).integers(1000, 30000, (size, length)).tolist())


def sentences() -> list[str]:
    """Sentences of SST-2."""
    lines = (DATA / "sst2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1 : TEXTS + 1]
    return [line.partition("\t")[0] for line in lines]


def reviews() -> list[str]:
    """Whole reviews of IMDB."""
    with (DATA / "imdb" / "imdb_12k.csv").open(encoding="utf-8", newline="") as file:
        return [row["text"] for row, _ in zip(csv.DictReader(file), range(TEXTS), strict=False)]


def batches(longest: int, seed: int) -> dict[str, Batch]:
    """What every runtime is asked; texts are cut to `longest` tokens, and left out where there are no data."""
    result = {f"{size}x{length}": drawn(size, length, seed) for size, length in SIZES}
    if DATA.exists():
        tokenizer = AutoTokenizer.from_pretrained(models.resolve("minilm"))
        for name, texts in (("SST-2", sentences()), ("IMDB", reviews())):
            ids = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
            result[f"{TEXTS} texts of {name}"] = Batch(ids)
    return result
