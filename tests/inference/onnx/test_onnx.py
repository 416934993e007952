"""ONNX files behind the one door: what they say of themselves, what lies beside them, and whatever can be wrong."""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import transformers as hf

from slimformer.errors import ArtifactError, CheckpointError, ConfigError
from slimformer.inference.bench import bench
from slimformer.inference.door import look_up, open_model
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.inference.pipeline import open_pipeline
from slimformer.integrations.onnx import to_onnx
from slimformer.tasks.options import TaskOptions
from tests import corpus, runs
from tests.artifact.forging import edit

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TEXTS = ["the film was good", "dull", "a very poor plot and a great end but not the cast", "fine", "a " * 40]
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkpoint whose labels have names."""
    folder = tmp_path_factory.mktemp("source") / "model"
    return runs.headed(folder, hf.BertForSequenceClassification, id2label={0: "no", 1: "yes"})


@pytest.fixture(scope="module")
def exported(source, tmp_path_factory):
    """A file in float, alone."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    to_onnx(source, path)
    return path


@pytest.fixture
def file(exported, source, tmp_path):
    """A copy of the file with the tokenizer beside it."""
    shutil.copy(exported, tmp_path)
    for name in TOKENIZER:
        shutil.copy(source / name, tmp_path)
    return tmp_path / "model.onnx"


def change(path, **metadata):
    """Change what a file says of itself."""
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, path)


def record_of(path):
    (entry,) = onnx.load(path).metadata_props
    return json.loads(entry.value)


def test_a_file_answers_as_its_source(file, source):
    expected, answers = (open_pipeline(model)(TEXTS) for model in (source, file))
    for one, other in zip(expected, answers, strict=True):
        assert one["label"] == other["label"]
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
    options = TaskOptions(task="classification", data=str(corpus.data_folder(file.parent / "data")))
    assert evaluate_on_task(file, options)["metrics"] == evaluate_on_task(source, options)["metrics"]


def test_neither_threads_nor_batch_mates_change_an_answer(file):
    pipeline = open_pipeline(file, batch_size=3)
    alone = [pipeline([text])[0] for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(pipeline, [TEXTS] * 8):
            for one, other in zip(answers, alone, strict=True):
                assert one["scores"] == pytest.approx(other["scores"], abs=1e-6)


@pytest.mark.slow
def test_rounded_activations_of_a_file_do_not_depend_on_batch_mates(source, tmp_path):
    to_onnx(source, tmp_path / "out", numbers="int8")
    pipeline = open_pipeline(tmp_path / "out")
    assert pipeline.runner.most is None
    for together, text in zip(pipeline(TEXTS), TEXTS, strict=True):
        assert pipeline([text])[0]["scores"] == pytest.approx(together["scores"], abs=1e-6)


@pytest.mark.slow
def test_a_file_with_one_scale_for_the_batch_is_asked_one_text_at_a_time(file):
    from onnxruntime.quantization import quantize_dynamic

    dynamic = file.with_name("dynamic.onnx")
    model = onnx.load(file)
    del model.graph.value_info[:]  # ONNX Runtime turns the head's weight, and trips over the shape it had
    quantize_dynamic(model, dynamic)
    pipeline = open_pipeline(dynamic)
    assert pipeline.codec.labels == ["no", "yes"]
    assert pipeline.runner.most == 1
    for together, text in zip(pipeline(TEXTS), TEXTS, strict=True):
        assert pipeline([text])[0] == together
    # Together they would not be the same.
    batch = pipeline.codec.collate(pipeline.codec.encode(TEXTS).features)
    joined = pipeline.runner(batch)["logits"]
    single = pipeline.runner({name: rows[1:2, :3] for name, rows in batch.items()})["logits"]
    assert not np.array_equal(joined[1:2], single)


def test_labels_come_from_the_file_alone(file, source):
    shutil.copy(source / "config.json", file.parent)
    edit(file.parent / "config.json", id2label={"0": "wrong", "1": "other"})
    assert open_pipeline(file)(TEXTS[:1])[0]["scores"].keys() == {"no", "yes"}
    change(file, slimformer=json.dumps({**record_of(file), "labels": ["bad", "good"]}))
    assert open_pipeline(file)(TEXTS[:1])[0]["scores"].keys() == {"bad", "good"}


def test_another_tokenizer_is_refused(file):
    words = json.loads((file.parent / "tokenizer.json").read_text())
    words["model"]["vocab"]["good"], words["model"]["vocab"]["bad"] = 9, 5
    (file.parent / "tokenizer.json").write_text(json.dumps(words))
    runs.run("predict", file, "good").refused("is another than it was exported with")
    # How the last caller had texts cut is no part of it, nor how the file is indented.


def test_a_tokenizer_that_only_looks_different_is_taken(file):
    content = json.loads((file.parent / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    (file.parent / "tokenizer.json").write_text(json.dumps(content, indent=1, sort_keys=True))
    assert open_pipeline(file)(TEXTS)


def test_a_file_without_a_tokenizer(file):
    for name in TOKENIZER:
        (file.parent / name).unlink()
    runs.run("predict", file, "good").refused("has no tokenizer or image processor beside it")
    assert bench(file, [(1, 8)], seconds=0)["bytes"] == file.stat().st_size


def test_a_file_of_somebody_else(file, source):
    change(file)
    runs.run("predict", file, "good").refused("was not exported by slimformer and has no config.json beside it")
    shutil.copy(source / "config.json", file.parent)
    expected, answers = (open_pipeline(model)(TEXTS) for model in (source, file))
    assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]
    assert open_pipeline(file.parent)(TEXTS) == answers
    # Counted in the file, where biases that are all zeros lie once.
    stored = bench(source, [(1, 8)], seconds=0)["parameters"]
    assert 0.95 * stored < bench(file, [(1, 8)], seconds=0)["parameters"] <= stored
    # Its config is of a model with another head.
    edit(file.parent / "config.json", architectures=["BertForQuestionAnswering"])
    runs.run("predict", file, '{"question": "a", "context": "b"}').refused("needs `start_logits`", "gives logits")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"no model at all", "does not open"),
        (b"\x08\x07\x12\x07pytorch", "does not open"),
    ],
)
def test_broken_files(tmp_path, content, words):
    (tmp_path / "model.onnx").write_bytes(content)
    for command in (["predict", tmp_path / "model.onnx", "good"], ["bench", tmp_path / "model.onnx"]):
        runs.run(*command).refused(words, "model.onnx")


def test_a_file_that_is_cut_or_says_nonsense(file):
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    runs.run("evaluate", file, "--task", "classification", "--data", file.parent).refused("does not open")
    file.write_bytes(whole)
    good = record_of(file)
    for text, words in {
        "{": "in JSON that is broken",
        "[]": "has a wrong `content`",
        json.dumps({**good, "format": 2}): "update slimformer",
        json.dumps({**good, "labels": 5}): "`labels`",
        json.dumps({**good, "secret": 5}): "unknown key `secret`",
        json.dumps({**good, "settings": {"model_type": "nonsense"}}): "does not describe a model",
        json.dumps({**good, "settings": {**good["settings"], "num_hidden_layers": 10**9}}): "at most",
        json.dumps({**good, "labels": ["a", "a"]}): "two outputs `a`",
    }.items():
        change(file, slimformer=text)
        runs.run("predict", file, "good").refused(words)


def test_weights_outside_the_folder_are_not_read(file):
    (file.parent / "inside").mkdir()
    (file.parent / "secret").write_bytes(bytes(4 * 32 * 64))
    model = onnx.load(file)
    tensor = next(
        each for each in model.graph.initializer if list(each.dims) == [32, 64] or list(each.dims) == [64, 32]
    )
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "../secret", "offset": "0", "length": str(4 * 32 * 64)}.items():
        tensor.external_data.add(key=key, value=value)
    (file.parent / "inside" / "model.onnx").write_bytes(model.SerializeToString())
    runs.run("predict", file.parent / "inside" / "model.onnx", "good").refused("does not open", "path")


def test_no_file(tmp_path):
    runs.run("predict", tmp_path / "none.onnx", "good").refused("no file at")


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("predict", ["--size", "S"]),
        ("predict", ["--base", "x"]),
        ("predict", ["--cast-base"]),
        ("predict", ["--draft", "S"]),
        ("predict", ["--route", "x"]),
        ("evaluate", ["--size", "S"]),
        ("evaluate", ["--base", "x"]),
        ("evaluate", ["--route", "x"]),
        ("bench", ["--size", "S"]),
        ("bench", ["--base", "x"]),
    ],
)
def test_flags_that_make_no_sense(file, command, flags):
    rest = {"predict": ["good"], "evaluate": ["--task", "classification", "--data", file.parent], "bench": []}
    if command == "evaluate":
        rest[command][-1] = corpus.data_folder(file.parent / "data")
    runs.run(command, file, *rest[command], *flags).refused(flags[0], "is an ONNX model", code=2)


def test_other_uses(file):
    runs.run("predict", file, "good", "--max-new-tokens", 3).refused("generates no text")
    runs.run("predict", file, "good", "--task", "retrieval").refused("needs `last_hidden_state`")
    runs.run("predict", file, "good", "--task", "tagging").refused("no trained head")
    runs.run("predict", file, "good", "--max-length", 65).refused("64 positions")
    runs.run("bench", file, "--length", 65).refused("64 positions")
    runs.run("bench", file, "--device", "abacus").refused("`--device` is `abacus`")
    runs.run("inspect", file).refused("file")


def test_what_a_file_costs(file, source):
    (cost,) = runs.run("bench", file, "--length", "8,16", "--seconds", 0, "--json").json["models"]
    plain = bench(source, [(1, 8)], seconds=0)
    assert cost["parameters"] == plain["parameters"]
    assert cost["bytes"] == file.stat().st_size == look_up(file).bytes
    assert [shape["length"] for shape in cost["shapes"]] == [8, 16]
    assert cost["peak_memory_bytes"] >= 0


@pytest.mark.slow
def test_a_decoder_is_measured_and_writes_no_text(tmp_path):
    source = runs.decoder(tmp_path / "decoder")
    to_onnx(source, tmp_path / "out")
    runs.run("predict", tmp_path / "out", "the film").refused("is a decoder in ONNX")
    data = corpus.data_folder(tmp_path / "data")
    options = TaskOptions(task="language-modelling", data=str(data), text_column="text")
    expected, measured = (evaluate_on_task(model, options)["metrics"] for model in (source, tmp_path / "out"))
    assert measured == pytest.approx(expected, rel=1e-4)


def test_without_the_extra(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"needs the package `onnxruntime`.*pip install 'slimformer\[onnx\]'"):
        open_pipeline(file)


def test_a_checkpoint_with_onnx_beside_it_stays_a_checkpoint(file, source, tmp_path):
    both = shutil.copytree(source, tmp_path / "both")
    shutil.copy(file, both)
    assert look_up(both).storage == "plain"


def test_methods_that_need_torch_say_so(file):
    with pytest.raises(ArtifactError, match="is an ONNX model"):
        open_model(file)
    with pytest.raises((ArtifactError, CheckpointError), match="is an ONNX model"):
        look_up(file).require(("plain",))
