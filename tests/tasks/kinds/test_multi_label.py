"""Any number of labels a text: reading them, their targets, metrics and answers, and a model that learns them."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
import transformers as hf

import slimformer
from slimformer.artifact import read_manifest
from slimformer.errors import ConfigError, DataError
from slimformer.tasks import get_task
from slimformer.tasks.kinds import kind_of, kind_of_model
from slimformer.tasks.metrics import multi_label_metrics
from tests import corpus, runs

#: A word → the label that a text with it has.
MARKS = {"good": "praise", "bad": "blame", "plot": "story", "cast": "people"}


def load(path, **options):
    return get_task("multi-label").load(path, ["train"], **options)


def named(data):
    return [[data.labels[label] for label in row["labels"]] for row in data["train"]]


@pytest.mark.parametrize("separator", [";", "|", ","])
def test_labels_joined_in_a_cell(separator, write):
    rows = [f"a film\tfun{separator} long ", "the plot\tlong", "an end\t"]
    data = load(write("train.tsv", "text\tlabels\n" + "\n".join(rows) + "\n"))
    assert data.labels == ["fun", "long"]
    assert named(data) == [["fun", "long"], ["long"], []]
    assert data.kind.settings["label_separator"] == separator


def test_labels_as_lists(write):
    rows = [
        {"text": "a", "tags": ["x", "y", "x"]},
        {"text": "b", "tags": []},
        {"text": "c", "tags": None},
        {"text": "d", "tags": [1, "a;b"]},
    ]
    data = load(write("train.jsonl", "\n".join(map(json.dumps, rows)) + "\n"))
    assert data.labels == ["1", "a;b", "x", "y"]
    assert named(data) == [["x", "y"], [], [], ["1", "a;b"]]


def test_lists_in_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = pa.table({"text": ["a", "b"], "labels": [["x"], ["x", "y"]]})
    parquet.write_table(table, tmp_path / "train.parquet")
    assert named(load(tmp_path)) == [["x"], ["x", "y"]]


def test_doubt_about_what_joins_the_labels(write):
    path = write("train.tsv", "text\tlabels\na film\tfun, really;long\nthe plot\tlong\n")
    with pytest.raises(DataError, match=r"labels may be joined by `;` \(.*line 2\) and `,` \(.*line 2\); say which"):
        load(path)
    assert load(path, label_separator=";").labels == ["fun, really", "long"]
    with pytest.raises(DataError, match=r"label_separator `/` is not known; give ; or \| or ,"):
        load(path, label_separator="/")
    with pytest.raises(DataError, match="task `classification` has no label_separator"):
        get_task("classification").load(path, ["train"], label_separator=";")


def test_both_splits_decide_together(write, tmp_path):
    write("train.tsv", "text\tlabels\na\tx;y\nb\ty\n")
    write("dev.tsv", "text\tlabels\nc\tx\n")
    data = get_task("multi-label").load(tmp_path)
    assert data.kind.settings["label_separator"] == ";"
    write("dev.tsv", "text\tlabels\nc\tx,y\n")
    with pytest.raises(DataError, match="labels may be joined by"):
        get_task("multi-label").load(tmp_path)


def test_labels_that_train_does_not_have(write, tmp_path):
    write("train.tsv", "text\tlabels\na\tx;y\nb\ty\n")
    write("dev.tsv", "text\tlabels\nc\tx;z\n")
    with pytest.raises(DataError, match="label `z` is not one of `x`, `y`"):
        get_task("multi-label").load(tmp_path)
    with pytest.raises(DataError, match="label `y` is number 2 of 2, but the model's head has 1 outputs"):
        load(tmp_path / "train.tsv").check_head(1)
    write("train.tsv", "text\tlabels\na\t\nb\t\n")
    with pytest.raises(DataError, match="neither this row nor any other has a label"):
        load(tmp_path / "train.tsv")


def test_one_label_is_enough(write):
    assert load(write("train.tsv", "text\tlabels\na\tspam\nb\t\n")).labels == ["spam"]


def test_targets_are_floats(write, pieces):
    data = load(write("train.tsv", "text\tlabels\nab\tx;y\nc\t\n"))
    batch = data.collator(pieces)(data.prepare("train", pieces, 16)[:])
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [[1, 1], [0, 0]]
    assert data.config_kwargs()["problem_type"] == "multi_label_classification"
    assert data.items(batch) == 2


def test_metrics():
    truth = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]])
    scores = np.array([[0.9, 0.6, 0.7], [0.1, 0.8, 0.2], [0.1, 0.2, 0.3], [0.9, 0.4, 0.6]])
    names = ("f1_micro", "f1_macro", "accuracy", "lrap")
    measured = multi_label_metrics(truth, scores, 0.5, names)
    # Right: 4 of the 6 that were predicted, 4 of the 5 there are.
    assert measured["f1_micro"] == pytest.approx(2 * 4 / (6 + 5))
    # Label 0: 2 of 2 and 2. Label 1: 1 of 2 and 2. Label 2: 1 of 2 and 1.
    assert measured["f1_macro"] == pytest.approx((1 + 0.5 + 2 / 3) / 3)
    assert measured["accuracy"] == 0.5
    # Texts 1 to 3 rank their labels first; in text 4 the second label comes third.
    assert measured["lrap"] == pytest.approx((1 + 1 + 1 + (1 + 2 / 3) / 2) / 4)


def test_a_wrong_prediction_shows_in_every_metric(write, pieces):
    data = load(write("train.tsv", "text\tlabels\nab\tx;y\nc\ty\nd\t\n"))
    features = data.prepare("train", pieces, 16)
    right = np.array([[3.0, 2.0], [-3.0, 2.0], [-2.0, -2.0]])
    assert set(data.compute_metrics("train", features, right).values()) == {1.0}
    wrong = data.compute_metrics("train", features, -right)
    assert wrong["f1_micro"] == wrong["accuracy"] == 0
    assert data.primary_metric == "f1_micro"


def test_which_models_it_answers_for():
    config = hf.BertConfig(problem_type="multi_label_classification", num_labels=3)
    name = "BertForSequenceClassification"
    assert kind_of_model(name, config).name == "multi-label"
    assert kind_of_model(name, hf.BertConfig(num_labels=3)).name == "classification"
    assert kind_of_model(name, hf.BertConfig(num_labels=1)).name == "regression"
    kind = kind_of("multi-label")
    assert kind.head_fits(config, ["a", "b", "c"])
    assert not kind.head_fits(config, ["a", "b"])
    assert not kind.head_fits(hf.BertConfig(num_labels=3), ["a", "b", "c"])
    assert not kind_of("classification").head_fits(config, ["a", "b", "c"])


def marked(folder, train=160, dev=48):
    """Texts whose labels follow from their words, as JSON Lines."""
    folder.mkdir()
    draw = random.Random(0)
    for split, count in (("train", train), ("dev", dev)):
        rows = []
        for _ in range(count):
            words = draw.choices(corpus.WORDS, k=draw.randint(3, 8))
            rows.append({"text": " ".join(words), "labels": sorted({MARKS[word] for word in words if word in MARKS})})
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A model fine-tuned on such texts, its data and what its run said."""
    folder = tmp_path_factory.mktemp("multi-label")
    base, data = corpus.model_folder(folder / "base", dropout=0.0), marked(folder / "data")
    flags = ["--max-steps", 250, "--batch-size", 32, "--lr", "3e-3", "--json", "--quiet"]
    result = runs.finetune(base, "multi-label", data, folder / "out", *flags).json
    return folder, result


@pytest.mark.slow
def test_it_is_learnt_and_measured_again(learned):
    folder, trained = learned
    assert trained["metrics"]["f1_micro"] > 0.95
    assert trained["metrics"]["lrap"] > 0.95
    measured = runs.run("evaluate", folder / "out", "--data", folder / "data", "--json").json
    assert measured["metrics"] == trained["metrics"]
    assert runs.run("verify", folder / "out").code == 0
    task = read_manifest(folder / "out").task
    assert (task.kind, task.labels) == ("multi-label", sorted(MARKS.values()))
    assert "pipeline_tag: text-classification" in (folder / "out" / "README.md").read_text()


def test_it_answers_with_all_labels(learned):
    folder, _ = learned
    texts = ["good plot the end", "bad cast", "the end was very"]
    done = runs.run("predict", folder / "out", *texts, "--json")
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [answer["labels"] for answer in answers] == [["praise", "story"], ["blame", "people"], []]
    assert all(set(answer["scores"]) == set(MARKS.values()) for answer in answers)
    lines = runs.run("predict", folder / "out", *texts).out.splitlines()
    assert lines[0].count(", ") == 1
    assert "praise 0." in lines[0]
    assert lines[2] == "(no label)"


@pytest.mark.slow
def test_other_methods(learned):
    folder, _ = learned
    common = ["--task", "multi-label", "--data", folder / "data", "--batch-size", 16, "--json", "--quiet"]
    masked = runs.run(
        "mask", "--model", folder / "base", *common, "--out", folder / "mask", "--blocks", "0-", "--max-steps", 2
    )
    assert set(masked.json["metrics"]) == {"f1_micro", "f1_macro", "accuracy", "lrap"}
    done = runs.run("predict", folder / "mask", "good plot", "--json")
    assert set(json.loads(done.out)) == {"labels", "scores"}
    flags = ["--kd", "none", "--weights", "8", "--max-steps", 2]
    small = runs.run("quantize", "--model", folder / "out", *common, "--out", folder / "small", *flags)
    assert small.json["metrics"]["f1_micro"] > 0.9
    again = runs.run("evaluate", folder / "small", "--data", folder / "data", "--json").json
    assert again["metrics"] == small.json["metrics"]


@pytest.mark.slow
def test_soft_labels(learned, tmp_path):
    """A student learns the probability of each label by itself, from its float self or from a larger teacher."""
    folder, trained = learned
    common = ["--batch-size", 16, "--max-steps", 30, "--json", "--quiet"]
    quantized = runs.run(
        *("quantize", "--model", folder / "out", "--task", "multi-label", "--data", folder / "data"),
        *("--weights", "4", "--lr", "1e-3", "--out", tmp_path / "q", *common),
    ).json
    assert quantized["metrics"]["f1_micro"] > trained["metrics"]["f1_micro"] - 0.1
    (tmp_path / "corpus.txt").write_text("the film was good\na bad plot and a good cast\n" * 8)
    flags = ["--corpus", tmp_path / "corpus.txt", "--layers", 1, "--objective", "soft-labels", "--out", tmp_path / "d"]
    losses = runs.run("distill", "--teacher", folder / "out", *flags, *common).json["losses"]
    assert 0 < losses["loss"] < 1


@pytest.mark.slow
def test_masks_vote_by_their_logits(learned):
    from slimformer.methods.mask.ensemble import ensemble

    folder, _ = learned
    common = {"model": folder / "base", "task": "multi-label", "data": folder / "data", "blocks": "0-", "quiet": True}
    for seed in (0, 1):
        slimformer.mask(**common, out=folder / f"vote{seed}", max_steps=2, batch_size=8, seed=seed)
    masks = [folder / "vote0", folder / "vote1"]
    assert ensemble(masks, folder / "data").how == "logits"
    with pytest.raises(ConfigError, match="`how` is `probabilities`, and labels that do not exclude each other"):
        ensemble(masks, folder / "data", how="probabilities")


def test_a_head_for_single_labels_is_not_taken_over(learned, tmp_path):
    folder, _ = learned
    single = corpus.data_folder(tmp_path / "single", train=16, dev=8)
    done = runs.finetune(folder / "out", "classification", single, tmp_path / "out", "--json")
    assert "problem type `multi_label_classification`" in done.json["notes"][-1]
    back = runs.finetune(tmp_path / "out", "multi-label", folder / "data", tmp_path / "back", "--json")
    assert "problem type `single_label_classification`" in back.json["notes"][-1]
    done = runs.run("evaluate", tmp_path / "out", "--task", "multi-label", "--data", folder / "data")
    done.refused("mean something else than task `multi-label` asks for")


def test_the_separator_is_remembered(tmp_path):
    base = corpus.model_folder(tmp_path / "base")
    rows = "the film\tgood, really;long\na plot\tlong\nan end\tlong\nfine\t\n"
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabels\n" + rows)
    refused = runs.finetune(base, "multi-label", tmp_path, tmp_path / "out")
    refused.refused("labels may be joined by")
    runs.finetune(base, "multi-label", tmp_path, tmp_path / "out", "--label-separator", ";", "--json").json  # noqa: B018
    assert runs.run("evaluate", tmp_path / "out", "--data", tmp_path, "--json").json["examples"] == 4
    assert read_manifest(tmp_path / "out").task.settings["label_separator"] == ";"
