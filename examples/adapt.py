"""Adapt MiniLM to the texts of a domain, fine-tune it there, and make it ternary while it keeps its relations.

The last step learns the teacher's attention relations beside its answers, in the spirit of BitDistill (arXiv
2510.13998), without the norms that one adds to the architecture. Run it in a few minutes: `python examples/adapt.py`.
The texts are made up here; bring your own as CSV or JSONL.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from made_up import write_data
from slimformer import adapt, finetune, quantize

WORDS = {"good": ["lovely", "great", "charming"], "bad": ["dull", "awful", "tedious"]}
SETTINGS = {"max_length": 16, "quiet": True}


def main(steps: int = 40) -> None:
    """Three methods, each on what the one before it left."""
    with tempfile.TemporaryDirectory() as scratch:
        data, adapted, tuned, ternary = (Path(scratch) / name for name in ("data", "adapted", "tuned", "ternary"))
        write_data(data, WORDS)
        domain = adapt(
            model="minilm",
            corpus=[data / "train.tsv"],
            text_column="text",
            out=adapted,
            max_steps=steps,
            head_steps=steps,
            batch_size=32,
            **SETTINGS,
        )
        before, after = (domain.metrics[name] for name in ("reconstruction_before", "reconstruction"))
        print(f"adapted: held-out loss {before:.2f} before, {after:.2f} after")
        task = {"task": "classification", "data": data, **SETTINGS}
        floats = finetune(model=adapted, out=tuned, max_steps=steps, lr=1e-4, **task)
        small = quantize(model=tuned, out=ternary, max_steps=steps, terms="logits:1, relations:1", **task)
        for folder, result in ((tuned, floats), (ternary, small)):
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            print(f"{folder.name}: accuracy {result.metrics['accuracy']:.3f} on dev, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
