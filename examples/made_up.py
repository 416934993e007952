"""Sentences that the examples learn from; bring your own as CSV or JSONL."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILLERS = ["the", "was", "quite", "that", "evening", "I", "thought", "we", "had", "a"]


def write_data(folder: Path, words: dict[str, list[str]]) -> Path:
    """Sentences with one word each that tells the label, as train.tsv and dev.tsv.

    Args:
        folder: Where they go; it must not exist yet.
        words: Label → the words that tell it.
    """
    rng = random.Random(0)
    folder.mkdir()
    for split, count in (("train", 400), ("dev", 100)):
        lines = ["text\tlabel"]
        for _ in range(count):
            label = rng.choice(list(words))
            sentence = [*rng.choices(FILLERS, k=6), rng.choice(words[label])]
            rng.shuffle(sentence)
            lines.append(f"{' '.join(sentence)}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder
