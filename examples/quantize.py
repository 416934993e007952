"""Fine-tune a small classifier, make it ternary with its float self as teacher, and compare files and answers.

Run it in a minute or two: `python examples/quantize.py`. The texts are made up here; bring your own as CSV or JSONL.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from transformers import pipeline

from made_up import write_data
from slimformer import finetune, quantize

WORDS = {"good": ["lovely", "great", "charming"], "bad": ["dull", "awful", "tedious"]}
SETTINGS = {"task": "classification", "max_length": 16, "quiet": True}


def main() -> None:
    """Train twice, look at the sizes, and ask the small one."""
    with tempfile.TemporaryDirectory() as scratch:
        data, floats, ternary = (Path(scratch) / name for name in ("data", "float", "ternary"))
        write_data(data, WORDS)
        tuned = finetune(model="minilm", data=data, out=floats, max_steps=25, lr=1e-4, **SETTINGS)
        small = quantize(model=floats, data=data, out=ternary, max_steps=40, packing="small", **SETTINGS)
        for file, result in ((floats / "model.safetensors", tuned), (ternary / "packed.safetensors", small)):
            size = file.stat().st_size
            print(f"{file.parent.name}: accuracy {result.metrics['accuracy']:.3f} on dev, {size / 2**20:.1f} MiB")
        print(pipeline("text-classification", str(ternary))(["a charming film", "that awful evening"]))


if __name__ == "__main__":
    main()
