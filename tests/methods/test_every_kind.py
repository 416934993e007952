"""Every kind of task on real rows, end to end: train, verify, and measure the saved artifact again."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from slimformer.artifact import read_manifest
from tests import corpus, runs
from tests.conftest import SHARED

if TYPE_CHECKING:
    from pathlib import Path

DATA = SHARED / "data"

#: Task → folder, base, metrics, further flags. The rows are few, the texts short.
CASES = {
    "sst2": ("sst2", "reader", {"accuracy"}, []),
    "cola": ("cola", "reader", {"matthews", "accuracy"}, []),
    "rte": ("rte", "reader", {"accuracy"}, ["--max-length", 32]),
    "mrpc": ("mrpc", "reader", {"f1", "accuracy"}, []),
    "stsb": ("stsb", "reader", {"pearson", "spearman"}, []),
    "ud-pos": ("ud-english-ewt", "reader", {"accuracy"}, []),
    "ncbi-ner": ("ner-NCBI-disease", "reader", {"f1", "precision", "recall", "accuracy"}, []),
    "arc": ("arc", "reader", {"accuracy"}, ["--max-length", 32]),
    "xquad": ("xquad", "reader", {"f1", "exact_match"}, ["--max-length", 128, "--language", "en"]),
    "tinyshakespeare": ("tinyshakespeare", "stories", {"perplexity", "loss", "accuracy"}, ["--max-length", 32]),
    # Another seed than 0, because it decides the masks of train and must not decide those of dev.
    "wikitext-2": ("wikitext-2", "speller", {"perplexity", "loss", "accuracy"}, ["--seed", 3]),
    "fashion-mnist": ("fashion-mnist", "viewer", {"accuracy"}, []),
    "cifar10": ("cifar10-jpg", "viewer", {"accuracy"}, []),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {
        "reader": runs.reader(folder / "reader"),
        "speller": corpus.model_folder(folder / "speller"),
        "viewer": runs.viewer(folder / "viewer"),
        "stories": SHARED / "weights" / "stories15M",
    }


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real data in {DATA}")
@pytest.mark.parametrize("task", CASES)
def test_on_real_rows(task, bases, tmp_path):
    folder, base, names, flags = CASES[task]
    if not bases[base].is_dir():
        pytest.skip(f"needs the real weights in {bases[base]}")
    trained = runs.finetune(bases[base], task, DATA / folder, tmp_path / "out", "--limit", 32, "--json", *flags).json
    assert set(trained["metrics"]) == names
    assert runs.run("verify", tmp_path / "out").code == 0
    measured = runs.run("evaluate", tmp_path / "out", "--data", DATA / folder, "--limit", 32, "--json").json
    assert measured["metrics"] == trained["metrics"]
    assert measured["task"] == task
    assert measured["examples"] == 32
    assert measured["notes"] == [note for note in trained["notes"] if note.startswith("dev: ")]
    manifest = read_manifest(tmp_path / "out")
    assert manifest.metrics == {f"{task}/dev": trained["metrics"]}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (cost,) = runs.run("bench", tmp_path / "out", "--length", 8, "--seconds", 0, "--json").json["models"]
    assert cost["bytes"] == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert 0 < cost["latency_ms"]["p50"] <= cost["latency_ms"]["p95"]


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real data in {DATA}")
def test_trained_in_one_language_and_measured_in_others(bases, tmp_path):
    flags = ["--max-length", 128, "--language", "en", "--limit", 32, "--json"]
    trained = runs.finetune(bases["reader"], "xquad", DATA / "xquad", tmp_path / "out", *flags).json
    found = {}
    for language in ("en", "de", "zh"):
        flags = ["--data", DATA / "xquad", "--language", language, "--limit", 32, "--json"]
        measured = runs.run("evaluate", tmp_path / "out", *flags).json
        assert (measured["task"], measured["examples"]) == ("xquad", 32)
        found[language] = measured["metrics"]
    assert found["en"] == trained["metrics"]
    assert found["de"] != found["en"]
    assert [set(metrics) for metrics in found.values()] == [{"f1", "exact_match"}] * 3
    # Where a whole answer is met, so are its words.
    assert all(metrics["exact_match"] <= metrics["f1"] for metrics in found.values())


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real data in {DATA}")
def test_the_whole_dev_split_and_the_test_split(bases, tmp_path):
    trained = runs.finetune(bases["reader"], "sst2", DATA / "sst2", tmp_path / "out", "--limit", 16, "--quiet")
    assert trained.code == 0
    measured = runs.run("evaluate", tmp_path / "out", "--task", "sst2", "--data", DATA / "sst2", "--json").json
    assert measured["examples"] == 872
    # GLUE's own test.tsv has no labels; the file that has them is found.
    test = runs.run("evaluate", tmp_path / "out", "--data", DATA / "sst2", "--split", "test", "--json").json
    assert test["examples"] == 1821
    # Movie reviews of another data set have the same labels, so the head can be measured on them.
    other = runs.run("evaluate", tmp_path / "out", "--task", "imdb", "--data", DATA / "imdb", "--limit", 8, "--json")
    assert other.json["examples"] == 8
    runs.run("evaluate", tmp_path / "out", "--task", "rte", "--data", DATA / "rte").refused("is not one of")


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real data in {DATA}")
def test_real_models_are_measured_as_they_come(bases):
    """MiniLM was made to find texts of like meaning; the small decoder knows stories, not Shakespeare."""
    found = runs.run("evaluate", "minilm", "--task", "retrieval", "--data", DATA / "sst2", "--limit", 64, "--json")
    assert found.json["metrics"]["one_nearest_neighbour"] > 0.6
    random = runs.run(
        "evaluate", bases["reader"], "--task", "retrieval", "--data", DATA / "sst2", "--limit", 64, "--json"
    )
    assert random.json["metrics"]["one_nearest_neighbour"] < found.json["metrics"]["one_nearest_neighbour"]
    if not bases["stories"].is_dir():
        pytest.skip("needs the real decoder")
    flags = ["--limit", 12, "--json"]
    read = runs.run(
        "evaluate", bases["stories"], "--task", "tinyshakespeare", "--data", DATA / "tinyshakespeare", *flags
    )
    assert 50 < read.json["metrics"]["perplexity"] < 5000
    guessed = runs.run("evaluate", bases["stories"], "--task", "lambada", "--data", DATA / "lambada", *flags)
    assert set(guessed.json["metrics"]) == {"last_word_accuracy", "perplexity", "loss"}
    guessed = runs.run(
        "evaluate", bases["stories"], "--task", "lambada", "--data", DATA / "lambada", "--split", "test", *flags
    )
    assert guessed.json["examples"] == 12


def rows(split: str) -> list[str]:
    return [" ".join(corpus.WORDS[start % 5 : start % 5 + 6]) for start in range(12 if split == "train" else 6)]


def generated(kind: str, folder: Path) -> Path:
    """Data of a kind in somebody's own files."""
    if kind.startswith("image"):
        return images(folder)
    for split in ("train", "dev"):
        lines = []
        for number, text in enumerate(rows(split)):
            words = text.split()
            row = {
                "classification": {"text": text, "label": f"c{number % 3}"},
                "regression": {"text": text, "score": number / 3},
                "tagging": {"tokens": words, "tags": [f"t{len(word) % 3}" for word in words]},
                "multiple-choice": {"question": text, "choices": words[: 2 + number % 3], "answer": number % 2},
                "question-answering": {
                    "id": str(number),
                    "question": "the end",
                    "context": text,
                    "answers": {"text": [words[1]], "answer_start": [text.index(words[1])]},
                },
                "language-modelling": {"text": text},
                "last-word": {"text": text},
                "multi-label": {"text": text, "labels": [f"c{each}" for each in range(number % 3)]},
                "retrieval": {"text": text, "label": f"c{number % 3}"},
                "similarity": {"text1": text, "text2": " ".join(reversed(words)), "score": number % 4},
            }[kind]
            lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def images(folder: Path) -> Path:
    """Small images of two classes."""
    for split, label, number in itertools.product(("train", "dev"), ("dark", "light"), range(6)):
        place = folder / split / label
        place.mkdir(parents=True, exist_ok=True)
        shade = 20 * number + (0 if label == "dark" else 120)
        Image.new("RGB", (28, 28), (shade, 60, shade)).save(place / f"{number}.png")
    return folder


#: Kind → what is measured on somebody's own files.
MEASURED = {
    "classification": {"accuracy", "f1_macro", "f1_micro", "matthews"},
    "regression": {"pearson", "spearman", "mean_squared_error"},
    "tagging": {"accuracy"},
    "multiple-choice": {"accuracy"},
    "question-answering": {"f1", "exact_match"},
    "language-modelling": {"perplexity", "loss", "accuracy"},
    "retrieval": {"one_nearest_neighbour"},
    "similarity": {"spearman", "pearson"},
}


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("kind", MEASURED)
def test_on_somebodys_own_files(kind, family, tmp_path):
    if (family, kind) == ("llama", "multiple-choice"):
        pytest.skip("transformers has no such head for decoders")
    (tmp_path / "data").mkdir()
    data = generated(kind, tmp_path / "data")
    base = corpus.model_folder(tmp_path / "base") if family == "bert" else runs.decoder(tmp_path / "base")
    trained = runs.finetune(base, kind, data, tmp_path / "out", "--json").json
    assert set(trained["metrics"]) == MEASURED[kind]
    assert runs.run("verify", tmp_path / "out").code == 0
    assert runs.run("evaluate", tmp_path / "out", "--data", data, "--json").json["metrics"] == trained["metrics"]
