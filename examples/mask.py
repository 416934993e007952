"""Two tasks on one base: train a mask for each, then answer both from one copy of the weights.

Run it in a minute or two: `python examples/mask.py`. The texts are made up here; bring your own as CSV or JSONL.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from made_up import write_data
from slimformer import mask
from slimformer.bank import MaskBank

WORDS = {
    "mood": {"good": ["lovely", "great", "charming"], "bad": ["dull", "awful", "tedious"]},
    "subject": {"film": ["film", "actor", "scene"], "food": ["soup", "bread", "chef"]},
}


def main() -> None:
    """Train, look at the sizes, and ask both tasks at once."""
    with tempfile.TemporaryDirectory() as scratch:
        bank = MaskBank("minilm")
        for task, words in WORDS.items():
            data = write_data(Path(scratch) / f"{task}-data", words)
            out = Path(scratch) / task
            result = mask(
                model="minilm", task="classification", data=data, out=out, max_steps=25, max_length=16, quiet=True
            )
            size = (out / "mask.safetensors").stat().st_size
            print(f"{task}: accuracy {result.metrics['accuracy']:.3f} on dev, {size / 2**20:.2f} MiB")
            bank.add(task, out)
        texts = ["a charming scene", "that awful soup"]
        for task, answers in bank.predict(dict.fromkeys(WORDS, texts)).items():
            print(task, [answer["label"] for answer in answers])
        print({name: f"{count / 2**20:.1f} MiB" for name, count in bank.memory().items()})


if __name__ == "__main__":
    main()
