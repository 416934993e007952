"""Distil MiniLM into a student a third of its size on a text of your own, and see what it kept.

Run it with one or more text files: python examples/distill.py book.txt notes/
"""

from __future__ import annotations

import sys

from slimformer import distill


def main(corpus: list[str], steps: int = 200) -> None:
    """Learn relations and sentence embeddings, then print the losses."""
    result = distill(
        teacher="minilm",
        layers=3,
        hidden=192,
        heads=12,
        start="spaced",
        pooled="mean",
        corpus=corpus,
        max_length=128,
        batch_size=32,
        max_steps=steps,
        out="small",
        report="small.html",
        resume=True,
    )
    print(f"{result.model.num_parameters():,} parameters in {result.folder}; losses {result.losses}")
    print("how it went: small.html; how good it is: slimformer evaluate small --task similarity --data YOUR_PAIRS")


if __name__ == "__main__":
    main(sys.argv[1:] or sys.exit("give text files or folders to learn from"))
