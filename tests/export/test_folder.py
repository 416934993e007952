"""Folders that `export` writes: complete, whole or not there, and asked without slimformer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
import transformers as hf

from slimformer.artifact import load, read_manifest, verify
from slimformer.errors import ArtifactError, ConfigError
from slimformer.inference.pipeline import open_pipeline
from slimformer.integrations.onnx import to_onnx
from slimformer.tasks.options import TaskOptions
from tests import corpus, runs
from tests.export import making
from tests.methods.test_every_kind import generated
from tests.parameters import slow

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

#: Kind → the head of a checkpoint, and its settings.
HEADS = {
    "classification": (hf.BertForSequenceClassification, {"id2label": {0: "c0", 1: "c1", 2: "c2"}}),
    "multi-label": (
        hf.BertForSequenceClassification,
        {"id2label": {0: "c0", 1: "c1"}, "problem_type": "multi_label_classification"},
    ),
    "regression": (hf.BertForSequenceClassification, {"num_labels": 1, "problem_type": "regression"}),
    "tagging": (hf.BertForTokenClassification, {"id2label": {0: "t0", 1: "t1", 2: "t2"}}),
    "multiple-choice": (hf.BertForMultipleChoice, {}),
    "question-answering": (hf.BertForQuestionAnswering, {}),
    "language-modelling": (hf.BertForMaskedLM, {}),
    "retrieval": (hf.BertModel, {}),
}
REQUESTS = {
    "multiple-choice": [("the end", ["good", "bad", "fine"]), ("a plot", ["good", "bad"])],
    "question-answering": [("the end", "the film was good"), ("a cast", "a very dull plot " * 20)],
    "language-modelling": ["the [MASK] was [MASK]", "[MASK]"],
}
TEXTS = ["the film was good", "dull", "a very poor plot and a great end but not the cast"]

#: Runs the example of a card where nothing but ONNX Runtime, NumPy and tokenizers can be imported.
ALONE = """
import sys
for name in ("torch", "transformers", "slimformer", "onnx"):
    sys.modules[name] = None
exec(open("example.py").read())
"""


def example(folder):
    """The first block of Python in the card of a folder."""
    return re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]


def run_alone(folder, place):
    """What the example of a card prints."""
    copied = shutil.copytree(folder, place / "copied")
    (copied / "example.py").write_text(example(folder))
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=copied, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def checkpoint(folder, kind):
    head, settings = HEADS[kind]
    return runs.headed(folder, head, **settings)


@pytest.mark.parametrize("kind", slow(HEADS, but=["classification"]))
def test_every_kind_answers_as_its_source(kind, tmp_path):
    source = checkpoint(tmp_path / "source", kind)
    data = generated(kind, (tmp_path / "data").mkdir() or tmp_path / "data")
    done = runs.run("export", source, "--out", tmp_path / "out", "--task", kind, "--data", data, "--json")
    comparison = done.json["comparison"]
    assert (comparison["task"], comparison["split"]) == (kind, "dev")
    assert comparison["largest"] < 1e-4
    assert comparison["agreement"] in (1, None)
    # What is printed is what `evaluate` says of both.
    for model, metrics in ((source, "source_metrics"), (tmp_path / "out", "metrics")):
        measured = runs.run("evaluate", model, "--task", kind, "--data", data, "--json").json
        assert measured["metrics"] == pytest.approx(comparison[metrics], abs=1e-6)
        assert measured["examples"] == comparison["examples"]
    requests = REQUESTS.get(kind, TEXTS)
    expected, answers = (open_pipeline(model)(requests) for model in (source, tmp_path / "out"))
    for one, other in zip(expected, answers, strict=True):
        assert_near(one, other)
    shown = run_alone(tmp_path / "out", tmp_path)
    assert shown.strip()
    assert verify(tmp_path / "out").max_difference < 1e-4


def assert_near(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_near(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_near(first, second)
    else:
        assert one == (pytest.approx(other, abs=1e-4) if isinstance(one, float) else other)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A checkpoint, and a folder that was exported from it."""
    folder = tmp_path_factory.mktemp("classifier")
    source = checkpoint(folder / "source", "classification")
    to_onnx(source, folder / "out")
    return source, folder / "out"


def test_what_lies_in_a_folder(classifier):
    source, out = classifier
    files = {"README.md", "config.json", "model.onnx", "onnx.json", "probe.json", "slimformer.json"}
    assert runs.listing(out) == files | {"tokenizer.json", "tokenizer_config.json"}
    inside = {entry.key: entry.value for entry in onnx.load(out / "model.onnx").metadata_props}
    record = json.loads(inside["slimformer"])
    assert record == json.loads((out / "onnx.json").read_text())
    assert (record["kind"], record["labels"], record["max_length"]) == ("classification", ["c0", "c1", "c2"], 64)
    assert (record["positions"], record["vocabulary_size"]) == (64, 5 + len(corpus.WORDS))
    assert record["parameters"] == sum(each.numel() for each in hf.AutoModel.from_pretrained(source).parameters()) + 99
    assert "id2label" not in record["settings"]
    assert str(source) not in json.dumps(inside)
    manifest = read_manifest(out)
    assert (manifest.model.storage, manifest.steps[-1].method) == ("onnx", "export")
    assert manifest.steps[-1].config["difference"]["examples"] == 16
    assert hf.AutoConfig.from_pretrained(out).id2label == {0: "c0", 1: "c1", 2: "c2"}


def test_the_example_of_the_card_answers_as_predict(classifier, tmp_path):
    _, out = classifier
    lines = [line for line in example(out).splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 11
    answers = open_pipeline(out)(["a fine film", "two hours of my life"])
    assert run_alone(out, tmp_path).strip() == str([answer["label"] for answer in answers])


def test_vectors_of_the_card_are_those_of_predict(tmp_path):
    source = checkpoint(tmp_path / "source", "retrieval")
    (source / "modules.json").write_text(
        json.dumps(
            [
                {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
            ]
        )
    )
    (source / "1_Pooling").mkdir()
    ways = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": ways}))
    prompts = {"prompts": {"query": "the good film"}, "default_prompt_name": "query"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    to_onnx(source, tmp_path / "out")
    expected = open_pipeline(source)(["a fine film", "two hours of my life"])
    assert_near(expected, open_pipeline(tmp_path / "out")(["a fine film", "two hours of my life"]))
    code = "import numpy; numpy.set_printoptions(threshold=10**6, precision=8)\n"
    card = tmp_path / "out" / "README.md"
    card.write_text(card.read_text().replace("```python\n", f"```python\n{code}", 1))
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", run_alone(tmp_path / "out", tmp_path))]
    assert numbers == pytest.approx([value for answer in expected for value in answer["embedding"]], abs=1e-4)


@pytest.mark.slow
def test_images(tmp_path):
    source = tmp_path / "source"
    runs.viewer(source)
    torch.manual_seed(0)
    config = hf.ViTConfig(**runs.SMALL, image_size=28, patch_size=7, id2label={0: "cat", 1: "dog"})
    hf.ViTForImageClassification(config).save_pretrained(source)
    data = generated("image-classification", (tmp_path / "data").mkdir() or tmp_path / "data")
    image = next(path for path in sorted(data.rglob("*")) if path.is_file())
    to_onnx(source, tmp_path / "out")
    assert_near(*(open_pipeline(model)([str(image)])[0] for model in (source, tmp_path / "out")))
    assert run_alone(tmp_path / "out", tmp_path).strip() in ("['cat']", "['dog']")


@pytest.mark.slow
def test_an_artifact_keeps_its_task_and_history(tmp_path):
    data = corpus.data_folder(tmp_path / "data")
    corpus.model_folder(tmp_path / "base")
    runs.finetune(tmp_path / "base", "classification", data, tmp_path / "art", "--max-length", 12, "--quiet")
    done = runs.run("export", tmp_path / "art", "--out", tmp_path / "out", "--numbers", "int8", "--data", data)
    *_, last = done.out.splitlines()
    assert last.startswith("on classification/dev, 32 examples: same answer in ")
    assert "(source " in last
    assert [step.method for step in read_manifest(tmp_path / "out").steps] == ["finetune", "export"]
    assert read_manifest(tmp_path / "out").metrics.keys() == {"classification/dev", "classification/dev, source"}
    assert "examples of `classification/dev` it gives the same answer" in (tmp_path / "out" / "README.md").read_text()
    # Nothing has to be told again: neither the task nor how texts are cut.
    measured = runs.run("evaluate", tmp_path / "out", "--data", data, "--json").json
    assert measured["metrics"] == read_manifest(tmp_path / "out").metrics["classification/dev"]
    assert open_pipeline(tmp_path / "out").codec.max_length == 12


def test_places_of_folders(classifier, tmp_path):
    source, out = classifier
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    runs.run("export", source, "--out", tmp_path / "mine", "--overwrite").refused("is no artifact")
    runs.run("export", source, "--out", source, "--overwrite").refused("the model itself")
    runs.run("export", source, "--out", out).refused("exists", "--overwrite")
    copied = shutil.copytree(out, tmp_path / "copied")
    (copied / "notes.txt").write_text("mine")
    runs.run("export", source, "--out", copied, "--overwrite").refused("`notes.txt` is none of its files")
    assert (copied / "notes.txt").read_text() == "mine"
    assert runs.listing(tmp_path) >= {"mine/thesis.txt", "copied/notes.txt"}


@pytest.mark.slow
def test_overwriting_and_a_second_file(classifier, tmp_path):
    source, out = classifier
    copied = shutil.copytree(out, tmp_path / "copied")
    result = to_onnx(source, copied, overwrite=True, one_file=1024)
    assert result.path == copied
    data = copied / "model.onnx.data"
    assert result.bytes == data.stat().st_size + (copied / "model.onnx").stat().st_size
    verify(copied)
    assert_near(open_pipeline(copied)(TEXTS), open_pipeline(out)(TEXTS))
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="is cut short"):
        open_pipeline(copied)


def test_what_has_no_tokenizer_goes_into_a_file_alone(tmp_path):
    with pytest.raises(ArtifactError, match="no tokenizer or image processor"):
        to_onnx(making.bert(), tmp_path / "out")
    shutil.copytree(runs.headed(tmp_path / "source", hf.BertModel), tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink()
    runs.run("export", tmp_path / "bare", "--out", tmp_path / "out").refused("tokenizer")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_in_memory_with_its_tokenizer(tmp_path):
    model = making.bert()
    to_onnx(model, tmp_path / "out", processor=corpus.tokenizer())
    pipeline, manifest = open_pipeline(tmp_path / "out"), read_manifest(tmp_path / "out")
    with torch.inference_mode():
        logits = model(**corpus.tokenizer()("a fine film", return_tensors="pt")).logits[0]
    assert pipeline(["a fine film"])[0]["scores"] == pytest.approx(
        dict(zip(["LABEL_0", "LABEL_1", "LABEL_2"], logits.softmax(-1).tolist(), strict=True)), abs=1e-5
    )
    assert manifest.base is None


def test_data_that_cannot_be(classifier, tmp_path):
    source, _ = classifier
    out = tmp_path / "out"
    runs.run("export", source, "--out", out, "--limit", 3).refused("`--limit` is for `--data`", code=2)
    runs.run("export", source, "--out", out, "--task", "tagging", "--data", tmp_path).refused("no trained head")
    runs.run("export", source, "--out", out, "--task", "classification", "--data", tmp_path / "no").refused("no")
    with pytest.raises(ConfigError, match="`data` is for a model with a name"):
        to_onnx(making.bert(), tmp_path / "m.onnx", data=TaskOptions(data="x"), processor=corpus.tokenizer())
    assert runs.listing(tmp_path) == set()


def test_nothing_else_takes_it_for_a_model_of_torch(classifier, tmp_path):
    _, out = classifier
    with pytest.raises(ArtifactError, match="is an ONNX model"):
        load(out)
    runs.run("export", out, "--out", tmp_path / "again").refused("is an ONNX model")
    data = corpus.data_folder(tmp_path / "data")
    runs.finetune(out, "classification", data, tmp_path / "tuned").refused("is an ONNX model", "never trained")
    assert runs.listing(tmp_path) == {"data", "data/train.tsv", "data/dev.tsv"}
