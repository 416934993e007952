"""What pages may take for granted: small data and models under the names the pages use.

A page says what it needs in a comment, `<!-- prepared: reviews, texts -->`; everything else it makes itself.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import transformers as hf
from PIL import Image

from tests import corpus, runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = {"good": ("lovely", "great", "charming"), "bad": ("dull", "awful", "tedious")}


def _rows(count: int) -> list[tuple[str, str]]:
    """Sentences and their labels."""
    rng = random.Random(0)
    labels = [rng.choice(list(WORDS)) for _ in range(count)]
    return [(f"a {rng.choice(WORDS[label])} film that evening", label) for label in labels]


def _reviews(folder: Path) -> None:
    """A folder with a file for each split, as a user would bring it."""
    folder.mkdir(parents=True)
    for split, count in (("train", 32), ("dev", 16)):
        lines = ["text,label", *(f"{text},{label}" for text, label in _rows(count))]
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


def _raw_reviews(file: Path) -> None:
    """One file without a header or splits, the label first."""
    lines = [f"{label}\t{text} {number}" for number, (text, label) in enumerate(_rows(60))]
    file.write_text("\n".join(lines) + "\n")


def _sst2(folder: Path) -> None:
    """SST-2 as GLUE gives it out."""
    folder.mkdir(parents=True)
    for split, count in (("train", 32), ("dev", 16)):
        lines = ["sentence\tlabel", *(f"{text}\t{int(label == 'good')}" for text, label in _rows(count))]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def _texts(folder: Path) -> None:
    """Text files without labels, no two lines alike."""
    folder.mkdir(parents=True)
    for number in range(2):
        lines = [f"It was dark and stormy night {number}{line}; the rain fell in torrents." for line in range(30)]
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")


def _papers(folder: Path) -> None:
    """Sentences of a domain, no two alike."""
    folder.mkdir(parents=True)
    rng = random.Random(1)
    verbs, nouns = (
        ("parses", "encodes", "tags", "aligns", "ranks"),
        ("corpora", "treebanks", "lexica", "spans", "graphs"),
    )
    lines = [f"The model {rng.choice(verbs)} {number} {rng.choice(nouns)} of the benchmark." for number in range(60)]
    (folder / "abstracts.txt").write_text("\n".join(lines) + "\n")


def _photos(folder: Path) -> None:
    """Images, some with a folder for each class of each split."""
    draw = random.Random(2)
    for split, count in (("train", 60), ("dev", 4)):
        for number in range(count):
            place = folder / split / ("cat", "dog")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            pixels = [(draw.randrange(256), draw.randrange(256), 80 * (number % 2)) for _ in range(28 * 28)]
            image = Image.new("RGB", (28, 28))
            image.putdata(pixels)
            image.save(place / f"{number}.png")


def _classifier(folder: Path) -> None:
    """A small random classifier in place of a fine-tuned MiniLM, which takes long to export."""
    runs.headed(folder, hf.BertForSequenceClassification, num_labels=2)


#: Name on the pages → what makes it.
MAKERS: dict[str, Callable[[Path], object]] = {
    "reviews": _reviews,
    "reviews.tsv": _raw_reviews,
    "texts": _texts,
    "papers": _papers,
    "photos": _photos,
    "path/to/vit": runs.viewer,
    "sst2": _sst2,
    "path/to/sst2": _sst2,
    "path/to/folder": corpus.model_folder,
    "sentiment": _classifier,
}


def prepare(names: list[str], folder: Path) -> None:
    """Put what a page needs into its folder."""
    for name in names:
        assert name in MAKERS, f"`{name}` cannot be prepared; there are: {', '.join(MAKERS)}"
        MAKERS[name](folder / name)
