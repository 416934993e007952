"""`slimformer evaluate`, of artifacts and of plain checkpoints."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import transformers as hf

from tests import corpus, runs


@pytest.fixture
def more_data(data, tmp_path):
    """A copy of the generated data, to be changed."""
    return shutil.copytree(data, tmp_path / "more")


def test_task_and_columns_come_from_the_artifact(base, data, tmp_path):
    for split in ("train", "dev"):
        text = (data / f"{split}.tsv").read_text()
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / f"{split}.tsv").write_text(text.replace("text\tlabel", "words\tverdict", 1))
    flags = ["--text-column", "words", "--label-column", "verdict", "--max-length", "8"]
    trained = runs.finetune(base, "classification", tmp_path / "own", tmp_path / "out", *flags, "--json").json
    measured = runs.run("evaluate", tmp_path / "out", "--data", tmp_path / "own", "--json").json
    assert measured["metrics"] == trained["metrics"]
    assert measured["task"] == "classification"
    # With the task named, in whatever spelling, it is the same.
    assert (
        runs.run("evaluate", tmp_path / "out", "--task", "CLASSIFICATION", "--data", tmp_path / "own", "--json").json[
            "metrics"
        ]
        == trained["metrics"]
    )


def test_a_file_without_a_header_is_divided_as_in_training(base, data, tmp_path):
    rows = [line.split("\t") for line in (data / "train.tsv").read_text().splitlines()[1:]]
    own = tmp_path / "own.csv"
    own.write_text("".join(f"{label},{text}\n" for text, label in rows))
    flags = ["--no-header", "--text-column", 1, "--label-column", 0, "--shares", "0.6,0.2,0.2", "--max-length", 12]
    done = runs.finetune(base, "classification", own, tmp_path / "out", *flags, "--json").json
    assert any("shares give" in note for note in done["notes"])
    dev, test = (
        runs.run("evaluate", tmp_path / "out", "--data", own, "--split", split, "--json").json
        for split in ("dev", "test")
    )
    assert dev["metrics"] == done["metrics"]
    assert dev["notes"] == test["notes"] == done["notes"]
    assert dev["examples"] + test["examples"] < 0.5 * len(rows)
    # A file that is a split by its name is all of it.
    (tmp_path / "test.csv").write_text(own.read_text())
    whole = runs.run("evaluate", tmp_path / "out", "--data", tmp_path / "test.csv", "--split", "test", "--json").json
    assert (whole["examples"], whole["notes"]) == (len(rows), [])
    # Whoever trains on with the same data reads them alike, and is told how.
    more = runs.finetune(tmp_path / "out", "classification", own, tmp_path / "more")
    assert more.code == 0, more.err
    for flag in ("--no-header", "--text-column 1", "--label-column 0", "--shares 0.6,0.2,0.2", "--max-length 12"):
        assert flag in more.err
    again = runs.run("evaluate", tmp_path / "more", "--data", own, "--split", "test", "--json").json
    assert again["examples"] == test["examples"]
    # Other data are not taken to be written alike.
    other = runs.finetune(tmp_path / "out", "classification", data, tmp_path / "other")
    assert other.code == 0, other.err


def test_people_get_one_line(artifact, data):
    done = runs.run("evaluate", artifact, "--data", data)
    assert done.out.startswith(f"{artifact} on classification/dev, 32 examples: accuracy 0.")
    assert done.out.count("\n") == 1
    assert done.err == ""


def test_data_has_to_be_given(artifact):
    runs.run("evaluate", artifact).refused("`--data` must be given", code=2)


def test_a_folder_that_is_not_there_is_told_first(artifact, tmp_path):
    runs.run("evaluate", tmp_path / "artefact").refused("no folder at", "artefact")


def test_other_splits(artifact, more_data):
    shutil.copy(more_data / "train.tsv", more_data / "test.tsv")
    metrics = [
        runs.run("evaluate", artifact, "--data", more_data, "--split", split, "--json").json
        for split in ("train", "test", "dev")
    ]
    assert [each["examples"] for each in metrics] == [96, 96, 32]
    assert metrics[0]["metrics"] == metrics[1]["metrics"]
    runs.run("evaluate", artifact, "--data", more_data, "--split", "exam").refused("split `exam` is not known")
    (more_data / "test.tsv").unlink()
    runs.run("evaluate", artifact, "--data", more_data, "--split", "test").refused("has no test split")


def test_the_batch_size_changes_nothing(artifact, data):
    one, seven = (
        runs.run("evaluate", artifact, "--data", data, "--batch-size", size, "--json").json["metrics"]
        for size in (1, 7)
    )
    assert one == seven
    runs.run("evaluate", artifact, "--data", data, "--batch-size", "0").refused("`--batch-size` is `0`", code=2)


def test_labels_the_head_does_not_know(artifact, more_data):
    with (more_data / "dev.tsv").open("a") as file:
        file.write("a film\tperhaps\n")
    runs.run("evaluate", artifact, "--data", more_data).refused("line 34", "`perhaps` is not one of `no`, `yes`")


def test_a_split_that_lacks_a_label_is_measured_with_the_heads_own(artifact, more_data):
    """The labels are the artifact's, not those that happen to occur."""
    rows = (more_data / "dev.tsv").read_text().splitlines()
    kept = [row for row in rows[1:] if row.endswith("\tyes")]
    (more_data / "dev.tsv").write_text("\n".join([rows[0], *kept]) + "\n")
    assert runs.run("evaluate", artifact, "--data", more_data, "--json").json["examples"] == len(kept)


def test_an_artifact_for_another_kind_of_task(artifact, data):
    for task in ("tagging", "question-answering", "multiple-choice", "language-modelling"):
        runs.run("evaluate", artifact, "--task", task, "--data", data).refused(
            f"is a `BertForSequenceClassification`, which has no trained head for task `{task}`"
        )
    runs.run("evaluate", artifact, "--task", "regression", "--data", data).refused(
        "mean something else than task `regression` asks for"
    )
    runs.run("evaluate", artifact, "--task", "lambada", "--data", data).refused("needs a decoder")


def test_a_classifier_does_not_do_for_regression(artifact, tmp_path):
    (tmp_path / "dev.tsv").write_text("text\tscore\na film\t1.5\nthe plot\t2\n")
    done = runs.run("evaluate", artifact, "--task", "regression", "--data", tmp_path)
    done.refused(
        "has 2 outputs (problem type `single_label_classification`)", "mean something else than task `regression`"
    )


def test_the_embeddings_of_an_artifact_are_measured_too(artifact, data):
    """Each text is looked up among the others by the cosine of what `predict` gives."""
    done = runs.run("evaluate", artifact, "--task", "retrieval", "--data", data, "--json")
    rows = [line.rsplit("\t", 1) for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    answers = runs.run("predict", artifact, *(text for text, _ in rows), "--task", "retrieval", "--json").out
    vectors = np.array([json.loads(line)["embedding"] for line in answers.splitlines()])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    right = 0
    for index, (_, label) in enumerate(rows):
        cosines = unit @ unit[index]
        cosines[index] = -2
        right += rows[int(cosines.argmax())][1] == label
    assert done.json["metrics"]["one_nearest_neighbour"] == pytest.approx(right / len(rows))


def test_a_harmed_artifact_is_not_measured(artifact, data, tmp_path):
    for name in ("model.safetensors", "config.json", "tokenizer.json", "slimformer.json"):
        copy = shutil.copytree(artifact, tmp_path / name)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        runs.run("evaluate", copy, "--data", data).refused(name)


def test_an_artifact_without_a_tokenizer(data, tmp_path):
    from slimformer.artifact import Step, save

    model = hf.BertForSequenceClassification(hf.BertConfig(**runs.SMALL, vocab_size=25))
    save(
        tmp_path / "out", model, step=Step(method="finetune"), task={"name": "classification", "kind": "classification"}
    )
    runs.run("evaluate", tmp_path / "out", "--data", data).refused("has no tokenizer or image processor")


def test_a_plain_checkpoint_without_a_head(base, data):
    runs.run("evaluate", base, "--task", "classification", "--data", data).refused(
        "is a `BertModel`, which has no trained head for task `classification`"
    )
    runs.run("evaluate", "minilm", "--task", "sst2", "--data", data).refused("`minilm` is a `BertModel`")
    runs.run("evaluate", base, "--task", "language-modelling", "--data", data).refused(
        "has no trained head", "BertForMaskedLM"
    )
    runs.run("evaluate", base, "--data", data).refused("`--task` must be given", code=2)
    runs.run("evaluate", "/nowhere", "--task", "sst2", "--data", data).refused("no folder at `/nowhere`")


def test_a_plain_checkpoint_with_a_trained_head(artifact, data, tmp_path):
    """An artifact stripped of everything that is ours is still a model with a head."""
    plain = shutil.copytree(artifact, tmp_path / "plain")
    for name in ("slimformer.json", "probe.json", "README.md"):
        (plain / name).unlink()
    expected = runs.run("evaluate", artifact, "--data", data, "--json").json["metrics"]
    found = runs.run("evaluate", plain, "--task", "classification", "--data", data, "--json")
    assert found.json["metrics"] == expected
    # The order of the labels is the head's, whatever the alphabet says.
    config = json.loads((plain / "config.json").read_text())
    config["id2label"] = {"0": "yes", "1": "no"}
    (plain / "config.json").write_text(json.dumps(config))
    turned = runs.run("evaluate", plain, "--task", "classification", "--data", data, "--json").json["metrics"]
    assert turned["accuracy"] == pytest.approx(1 - expected["accuracy"])


def test_a_plain_head_of_another_size(more_data, tmp_path):
    two = runs.headed(tmp_path / "two", hf.BertForSequenceClassification, num_labels=2)
    three = runs.headed(tmp_path / "three", hf.BertForSequenceClassification, num_labels=3)
    assert runs.run("evaluate", two, "--task", "classification", "--data", more_data, "--json").code == 0
    runs.run("evaluate", three, "--task", "classification", "--data", more_data).refused("has 3 outputs")
    with (more_data / "dev.tsv").open("a") as file:
        file.write("a film\tyonder\n")
    runs.run("evaluate", two, "--task", "classification", "--data", more_data).refused(
        "line 34", "label `yonder` is number 3 of 3, but the model's head has 2 outputs"
    )


def test_the_labels_of_a_preset_in_the_order_of_a_plain_head(tmp_path):
    """SST-2 as another library would have saved it: other spelling, other order."""
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe film was good\t1\na dull plot\t0\nlovely cast\t1\n")
    accuracy = {}
    for order in (("NEGATIVE", "POSITIVE"), ("POSITIVE", "NEGATIVE")):
        names = dict(enumerate(order))
        folder = runs.headed(tmp_path / order[0], hf.BertForSequenceClassification, id2label=names)
        done = runs.run("evaluate", folder, "--task", "sst2", "--data", tmp_path, "--json")
        accuracy[order[0]] = done.json["metrics"]["accuracy"]
    assert accuracy["NEGATIVE"] == pytest.approx(1 - accuracy["POSITIVE"])


def test_a_decoder_is_measured_as_it_comes(tmp_path):
    decoder = runs.decoder(tmp_path / "decoder")
    text = tmp_path / "dev.txt"
    text.write_text("\n".join(" ".join(corpus.WORDS[start : start + 9]) for start in range(9)) + "\n")
    done = runs.run("evaluate", decoder, "--task", "language-modelling", "--data", text, "--json")
    assert done.json["metrics"]["perplexity"] == pytest.approx(len(corpus.WORDS) + 5, rel=0.2)  # it knows nothing
    assert done.err == ""


def test_a_checkpoint_with_a_masked_head_is_measured_as_it_comes(tmp_path):
    folder = runs.headed(tmp_path / "masked", hf.BertForMaskedLM)
    text = tmp_path / "dev.txt"
    text.write_text("\n".join(" ".join(corpus.WORDS[start : start + 9]) for start in range(9)) + "\n")
    done = runs.run("evaluate", folder, "--task", "language-modelling", "--data", text, "--json")
    assert done.json["metrics"]["loss"] > 0


def test_a_plain_decoder_with_a_head_and_no_padding_token(data, tmp_path):
    sizes = {**runs.SMALL, "num_key_value_heads": 2, "vocab_size": 25, "max_position_embeddings": 64}
    config = hf.LlamaConfig(**sizes, bos_token_id=2, eos_token_id=3)
    hf.LlamaForSequenceClassification(config).save_pretrained(tmp_path / "plain")
    corpus.tokenizer().save_pretrained(tmp_path / "plain")
    assert hf.AutoConfig.from_pretrained(tmp_path / "plain").pad_token_id is None
    one, many = (
        runs.run(
            "evaluate", tmp_path / "plain", "--task", "classification", "--data", data, "--batch-size", size, "--json"
        ).json["metrics"]
        for size in (1, 32)
    )
    assert one == many


def test_settings_may_stand_in_a_file(artifact, data, tmp_path):
    recipe = tmp_path / "evaluate.yaml"
    recipe.write_text(f"data: {data}\nlimit: 7\n")
    assert runs.run("evaluate", artifact, "--config", recipe, "--json").json["examples"] == 7
    assert runs.run("evaluate", artifact, "--config", recipe, "--limit", "5", "--json").json["examples"] == 5
    recipe.write_text("split: test\n")
    runs.run("evaluate", artifact, "--config", recipe).refused("there is no setting `split`")


def test_what_comes_after_distilling_reads_data_as_the_teacher_does(base, data, tmp_path):
    rows = [line.split("\t") for line in (data / "train.tsv").read_text().splitlines()[1:]]
    own = tmp_path / "own.tsv"
    own.write_text("".join(f"{label}\t{text}\n" for text, label in rows))
    flags = ["--no-header", "--text-column", 1, "--label-column", 0, "--shares", "0.6,0.2,0.2"]
    assert runs.finetune(base, "classification", own, tmp_path / "teacher", *flags).code == 0
    distilling = ["--corpus", own, *flags[:3], "--layers", 1, "--max-steps", 2, "--batch-size", 8, "--max-length", 16]
    then = ["--then-task", "classification", "--data", own, "--finetune-steps", 2]
    done = runs.run("distill", "--teacher", tmp_path / "teacher", *distilling, *then, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    parts = [
        runs.run("evaluate", tmp_path / name, "--data", own, "--split", "test", "--json").json["examples"]
        for name in ("teacher", "out-classification")
    ]
    assert parts[0] == parts[1] < 0.3 * len(rows)
