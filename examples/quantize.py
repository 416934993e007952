"""Fine-tune a small classifier, make it ternary with its float self as teacher, and compare files and answers.

Run it in a minute or two: `python examples/quantize.py`. The texts are made up here; bring your own as CSV or JSONL.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from transformers import pipeline

from slimformer import finetune, quantize

WORDS = {"good": ["lovely", "great", "charming"], "bad": ["dull", "awful", "tedious"]}
FILLERS = ["the", "was", "quite", "that", "evening", "film", "thought", "we", "had", "a"]
SETTINGS = {"task": "classification", "max_length": 16, "quiet": True}


def write_data(folder: Path) -> Path:
    """Sentences with one telling word each, as train.tsv and dev.tsv."""
    rng = random.Random(0)
    folder.mkdir()
    for split, count in (("train", 400), ("dev", 100)):
        lines = ["text\tlabel"]
        for _ in range(count):
            label = rng.choice(list(WORDS))
            sentence = [*rng.choices(FILLERS, k=6), rng.choice(WORDS[label])]
            rng.shuffle(sentence)
            lines.append(f"{' '.join(sentence)}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def main() -> None:
    """Train twice, look at the sizes, and ask the small one."""
    with tempfile.TemporaryDirectory() as scratch:
        data, floats, ternary = (Path(scratch) / name for name in ("data", "float", "ternary"))
        write_data(data)
        tuned = finetune(model="minilm", data=data, out=floats, max_steps=25, lr=1e-4, **SETTINGS)
        small = quantize(model=floats, data=data, out=ternary, max_steps=40, store="small", **SETTINGS)
        for name, result in (("float", tuned), ("ternary", small)):
            size = (Path(scratch) / name / "model.safetensors").stat().st_size
            print(f"{name}: accuracy {result.metrics['accuracy']:.3f} on dev, {size / 2**20:.1f} MiB")
        print(pipeline("text-classification", str(ternary))(["a charming film", "that awful evening"]))


if __name__ == "__main__":
    main()
