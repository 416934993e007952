"""Two tasks on one base: train a mask for each, then answer both from one copy of the weights.

Run it in a minute or two: `python examples/mask.py`. The texts are made up here; bring your own as CSV or JSONL.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from slimformer import mask
from slimformer.bank import MaskBank

WORDS = {
    "mood": {"good": ["lovely", "great", "charming"], "bad": ["dull", "awful", "tedious"]},
    "subject": {"film": ["film", "actor", "scene"], "food": ["soup", "bread", "chef"]},
}
FILLERS = ["the", "was", "quite", "that", "evening", "I", "thought", "we", "had", "a"]


def write_data(folder: Path, words: dict[str, list[str]]) -> Path:
    """Sentences with one telling word each, as train.tsv and dev.tsv."""
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
