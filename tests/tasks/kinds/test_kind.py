"""A kind of task that the package knows nothing of, registered here: trained, measured and asked like any other."""

from __future__ import annotations

import json
import random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer.artifact import read_manifest
from slimformer.errors import DataError, RegistryError
from slimformer.registry import KINDS
from slimformer.tasks import get_task, known
from slimformer.tasks.columns import guess_one
from slimformer.tasks.features import Features
from slimformer.tasks.kinds import has_task_head, kind_of, kind_of_model, pipeline_tag
from slimformer.tasks.kinds.kind import Kind
from tests import corpus, runs


class Stars(Kind):
    """Texts with one to five stars: one output, rounded to a whole star."""

    name: ClassVar[str] = "stars"
    head = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    metrics: ClassVar[tuple[str, ...]] = ("within_one", "exact")
    labelled = False
    max_length = 24
    request = "a text"

    def guess_label(self, found):
        return guess_one(found, ("stars",), "stars")

    def parse(self, row, columns, rename):
        stars = int(row.values[columns.label])
        if not 1 <= stars <= 5:
            raise DataError(f"{row.at()}: `{stars}` stars; give 1 to 5")
        return [{"text": row.values[columns.text[0]], "stars": stars}]

    def config_kwargs(self, labels):
        return {"num_labels": 1, "problem_type": "regression"}

    def features(self, split, processor, max_length, seed):
        encoded = [processor(example["text"], truncation=True, max_length=max_length) for example in split]
        return Features(
            [
                {**{name: np.array(ids) for name, ids in each.items()}, "labels": float(example["stars"])}
                for each, example in zip(encoded, split, strict=True)
            ]
        )

    def score(self, split, features, predictions, labels, metrics):
        apart = np.abs(self._stars(predictions) - np.array([example["stars"] for example in split]))
        known = {"within_one": float(np.mean(apart <= 1)), "exact": float(np.mean(apart == 0))}
        return {name: known[name] for name in metrics}

    def encode(self, request):
        if not isinstance(request, str):
            raise self.unfit(request)
        return {"text": request, "stars": 1}

    def decode(self, split, features, outputs, labels, processor):
        return [{"stars": int(stars)} for stars in self._stars(outputs["logits"])]

    def line(self, answer):
        return "*" * answer["stars"]

    @staticmethod
    def _stars(logits: Any) -> Any:
        return np.clip(np.rint(np.asarray(logits).reshape(-1)), 1, 5).astype(int)


@pytest.fixture
def stars():
    KINDS.add("stars", Stars, "texts with one to five stars")
    yield
    KINDS.remove("stars")


@pytest.fixture
def reviews(tmp_path):
    folder, draw = tmp_path / "reviews", random.Random(0)
    folder.mkdir()
    for split, count in (("train", 120), ("dev", 40)):
        rows = ["text\tstars"]
        for _ in range(count):
            good = draw.randint(0, 4)
            words = ["good"] * good + ["bad"] * (4 - good) + draw.choices(corpus.WORDS[8:], k=3)
            draw.shuffle(words)
            rows.append(f"{' '.join(words)}\t{good + 1}")
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.slow
def test_end_to_end(stars, reviews, tmp_path):
    base = corpus.model_folder(tmp_path / "base", dropout=0.0)
    flags = ["--max-steps", 200, "--batch-size", 32, "--lr", "3e-3", "--json", "--quiet"]
    trained = runs.finetune(base, "stars", reviews, tmp_path / "out", *flags).json
    assert set(trained["metrics"]) == {"within_one", "exact"}
    assert trained["metrics"]["within_one"] > 0.9
    measured = runs.run("evaluate", tmp_path / "out", "--data", reviews, "--json").json
    assert measured["metrics"] == trained["metrics"]
    assert read_manifest(tmp_path / "out").task.kind == "stars"
    assert "pipeline_tag: text-classification" in (tmp_path / "out" / "README.md").read_text()
    asked = ["good good good good the film", "bad bad bad bad the plot"]
    best, worst = (
        json.loads(line) for line in runs.run("predict", tmp_path / "out", *asked, "--json").out.splitlines()
    )
    assert best["stars"] >= 4
    assert worst["stars"] <= 2
    assert runs.run("predict", tmp_path / "out", asked[0]).out == "*" * best["stars"] + "\n"
    masked = runs.run(
        *("mask", "--model", base, "--task", "stars", "--data", reviews, "--out", tmp_path / "mask"),
        *("--blocks", "0-", "--max-steps", 2, "--batch-size", 8, "--quiet", "--json"),
    )
    assert set(masked.json["metrics"]) == {"within_one", "exact"}


def test_a_generic_task_comes_with_it(stars):
    assert "stars" in known()
    preset = get_task("Stars").preset
    assert (preset.kind, preset.summary, preset.max_length) == ("stars", "texts with one to five stars", 24)


def test_once_it_is_gone(tmp_path, reviews):
    KINDS.add("stars", Stars)
    try:
        base = corpus.model_folder(tmp_path / "base")
        assert runs.finetune(base, "stars", reviews, tmp_path / "out").code == 0
    finally:
        KINDS.remove("stars")
    assert "stars" not in known()
    with pytest.raises(DataError, match="task `stars` is not known"):
        get_task("stars")
    with pytest.raises(RegistryError, match="there is no kind `stars`"):
        kind_of("stars")
    # The artifact stays what it is; only asking it needs the kind.
    assert runs.run("verify", tmp_path / "out").code == 0
    runs.run("predict", tmp_path / "out", "good").refused("there is no kind `stars`")


@pytest.mark.parametrize("name", KINDS.names)
def test_every_kind_holds_together(name):
    kind = kind_of(name)
    assert kind.name == name
    assert KINDS.help(name)
    assert kind.metrics
    assert hasattr(hf, kind.head)
    assert kind.axes[0] == "batch"
    assert kind.pipeline_tag
    assert kind.request
    assert ".txt" in kind.readers
    with pytest.raises(DataError, match=f"a request for {name} reads `3`; give "):
        kind.encode(3)


@pytest.mark.parametrize(
    ("architecture", "name", "tag"),
    [
        ("BertForSequenceClassification", "classification", "text-classification"),
        ("RobertaForTokenClassification", "tagging", "token-classification"),
        ("MPNetForMultipleChoice", "multiple-choice", "multiple-choice"),
        ("DistilBertForQuestionAnswering", "question-answering", "question-answering"),
        ("BertForMaskedLM", "language-modelling", "fill-mask"),
        ("LlamaForCausalLM", "language-modelling", "text-generation"),
        ("GPT2LMHeadModel", "language-modelling", "text-generation"),
        ("ViTForImageClassification", "image-classification", "image-classification"),
        ("DeiTForImageClassificationWithTeacher", "image-classification", "image-classification"),
        ("BertModel", "retrieval", "feature-extraction"),
        ("ViTMAEForPreTraining", None, None),
    ],
)
def test_which_kind_a_class_is_of(architecture, name, tag):
    kind = kind_of_model(architecture)
    assert (None if kind is None else kind.name) == name
    assert pipeline_tag(architecture) == tag


def test_which_kind_a_config_is_of():
    images = hf.ViTConfig()
    assert kind_of_model("ViTModel", images).name == "image-retrieval"
    assert kind_of_model("BertModel", hf.BertConfig()).name == "retrieval"
    assert kind_of_model("ViTMAEForPreTraining", images) is None
    assert kind_of_model("BertForPreTraining", hf.BertConfig()).head == "AutoModelForMaskedLM"
    assert pipeline_tag("BertModel", "similarity") == "feature-extraction"
    assert pipeline_tag("BertForSequenceClassification", "regression") == "text-classification"
    assert pipeline_tag("BertForSequenceClassification", "not installed") == "text-classification"


def test_heads_that_were_trained_for_a_task():
    assert has_task_head("BertForTokenClassification")
    for name in ("BertForMaskedLM", "GPT2LMHeadModel", "BertModel", "BertForPreTraining"):
        assert not has_task_head(name)


@pytest.mark.parametrize("as_array", [torch.from_numpy, np.asarray])
def test_what_a_loss_is_a_mean_over(as_array):
    labels = as_array(np.array([[5, -100, 7], [-100, -100, 8]]))
    ids = as_array(np.zeros((2, 3)))
    batch = {"input_ids": ids, "labels": labels}
    assert kind_of("tagging").items(batch) == 3
    assert kind_of("language-modelling", {"objective": "masked"}).items(batch) == 3
    assert kind_of("language-modelling").items(batch) == 2  # the first token is predicted by nothing
    assert kind_of("last-word").items(batch) == 2
    assert kind_of("classification").items({"input_ids": ids, "labels": as_array(np.array([0, 1]))}) == 2
    assert kind_of("question-answering").items({"input_ids": ids, "start_positions": as_array(np.array([0, 1]))}) == 2
    nothing = {"labels": as_array(np.full((2, 3), -100))}
    assert kind_of("tagging").items(nothing) == 1
