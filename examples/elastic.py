"""Train one classifier of every size, use it at two of them, and take out the largest within a budget.

Run it in a minute or two: `python examples/elastic.py`. The texts are made up here; bring your own as CSV or JSONL.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from made_up import write_data
from slimformer import elastic, load
from slimformer.inference.extraction import extract
from slimformer.sizes import Elastic

WORDS = {"good": ["lovely", "great", "charming"], "bad": ["dull", "awful", "tedious"]}


def main(steps: int = 40) -> None:
    """Train, answer at the smallest and the largest size, and extract."""
    with tempfile.TemporaryDirectory() as scratch:
        data, whole, small = (Path(scratch) / name for name in ("data", "elastic", "small"))
        write_data(data, WORDS)
        settings = {"task": "classification", "max_length": 16, "max_steps": steps, "lr": 2e-4, "quiet": True}
        result = elastic(model="minilm", data=data, out=whole, **settings)
        for size in ("S", "M", "L", "XL"):
            print(f"{size}: accuracy {result.metrics[f'accuracy@{size}']:.3f} on dev")
        loaded = load(whole)
        texts = loaded.processor(["a charming film", "that awful evening"], padding=True, return_tensors="pt")
        for size in ("S", "XL"):
            with Elastic.of(loaded.model).at(size):  # one set of weights, in this thread at this size
                print(size, loaded.model(**texts).logits.argmax(-1).tolist())
        extraction = extract(whole, small, max_params=17_000_000)
        print(f"{extraction.allocation}: {extraction.manifest.model.parameters:,} parameters in {small.name}")


if __name__ == "__main__":
    main()
