"""`slimformer export`: JSON for machines, two lines for people, one line for what cannot be."""

from __future__ import annotations

import pytest

from slimformer.artifact import Step, save
from tests import corpus, runs
from tests.export import making

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A plain checkpoint without a head."""
    return corpus.model_folder(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """An artifact with ternary weights."""
    folder = tmp_path_factory.mktemp("artifact") / "model"
    save(folder, making.quantized(making.bert(100)), step=Step(method="quantize"), processor=corpus.tokenizer())
    return folder


@pytest.mark.slow
def test_lines(artifact, tmp_path):
    done = runs.run("export", artifact, "--out", tmp_path / "model.onnx", "--numbers", "ternary")
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first.startswith(
        f"{artifact} exported: BertForSequenceClassification, ternary, 8 matrices in few bits, opset "
    )
    assert first.endswith(f"KiB, saved in {tmp_path / 'model.onnx'}")
    assert second.startswith("difference to the source on 16 examples: at most ")
    assert second.endswith(" %")
    assert "same decision in " in second
    assert runs.listing(tmp_path) == {"model.onnx"}


@pytest.mark.slow
def test_json(base, tmp_path):
    done = runs.run("export", base, "--out", tmp_path / "model.onnx", "--numbers", "int8", "--length", "20", "--json")
    assert done.err == ""
    assert done.json["model"] == str(base)
    assert done.json["bytes"] == (tmp_path / "model.onnx").stat().st_size
    assert done.json["numbers"] == "int8"
    assert done.json["matrices"] == 14
    assert done.json["outputs"] == ["last_hidden_state", "pooler_output"]
    assert 0 < done.json["difference"]["mean"] < done.json["difference"]["largest"]
    assert done.json["difference"]["agreement"] is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--numbers", "ternary"], "no ternary weights"),
        (["--length", "65"], "`--length` is 65, but the model has 64 positions"),
    ],
)
def test_refused(base, tmp_path, flags, message):
    runs.run("export", base, "--out", tmp_path / "model.onnx", *flags).refused(message)
    assert runs.listing(tmp_path) == set()


def test_wrong_usage(artifact, tmp_path):
    runs.run("export", artifact, "--out", tmp_path / "a.onnx", "--numbers", "int3").refused("int3", code=2)
    runs.run("export", artifact).refused("--out", code=2)
    runs.run("export", "minilmm", "--out", tmp_path / "a.onnx").refused("`minilmm` is no folder here")
    (tmp_path / "a.onnx").touch()
    runs.run("export", artifact, "--out", tmp_path).refused("exists and is no artifact")
    (tmp_path / "b.onnx").mkdir()
    runs.run("export", artifact, "--out", tmp_path / "b.onnx").refused("is a folder")
    runs.run("export", artifact, "--out", tmp_path / "a.onnx").refused("exists", "--overwrite")
