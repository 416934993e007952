"""Code that a model brings along: nobody is asked, nothing runs, unless the caller says so."""

from __future__ import annotations

import builtins
import json

import pytest
import torch

from slimformer import models
from slimformer.errors import CheckpointError
from slimformer.inference.door import open_model
from slimformer.registry import COMMANDS, METHODS
from tests import corpus, runs

#: Code of a model: it leaves a file behind wherever it is run, and is a BERT under another name.
CODE = """
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification
Path({ran!r}).touch()
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertForSequenceClassification):
    config_class = OwnConfig
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A model with code of its own, and the file that tells whether it ran; who is asked agrees to everything."""
    folder, ran = corpus.model_folder(tmp_path / "own"), tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    auto = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    auto["AutoModelForSequenceClassification"] = "own.OwnModel"
    config |= {"model_type": "own", "architectures": ["OwnModel"], "auto_map": auto}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(CODE.format(ran=str(ran)))
    asked = []
    monkeypatch.setattr(builtins, "input", lambda *_: asked.append(1) or "y")
    yield folder, ran
    assert not asked


def arguments(command, model, tmp_path):
    """A use of a command on a model."""
    data = corpus.data_folder(tmp_path / "data", train=8, dev=4)
    task = ["--task", "classification", "--data", data]
    out = ["--out", tmp_path / "out"]
    first = {"distill": "--teacher"}.get(command, "--model")
    if command in METHODS:
        needed = {"distill": ["--layers", "1"], "extend": ["--new-tokens", "2"]}.get(command, [])
        corpora = ["--corpus", data / "train.tsv", *needed]
        more = task if METHODS.get(command).learns_from == "task" else corpora
        return [command, first, model, *more, *out]
    more = {"evaluate": task, "predict": ["a film"], "export": ["--out", tmp_path / "model.onnx"]}
    more |= {"merge": out, "unpack": out, "push": ["me/mine"]}
    more |= {"extract": ["--allocation", "S", *out], "route": [*task[2:], "--compute", "0.5", *out]}
    return [command, model, *more.get(command, [])]


@pytest.mark.parametrize("command", [name for name in (*METHODS.own, *COMMANDS.own) if name != "demo"])
def test_no_command_asks_or_runs_code_of_a_model(command, hostile, tmp_path):
    folder, ran = hostile
    done = runs.run(*arguments(command, folder, tmp_path))
    assert done.code == 1, done
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    if command not in ("verify", "merge", "unpack", "push"):  # to which the folder is no artifact
        assert "--trust-remote-code" in done.err
    assert not ran.exists()
    assert not (tmp_path / "out").exists()


def test_code_runs_when_told(hostile):
    folder, ran = hostile
    done = runs.run("inspect", folder, "--trust-remote-code")
    assert ran.exists()
    assert "family `own` is not known" in done.err or done.code == 0
    assert not models.trusted()


def test_python_is_told_by_an_argument(hostile):
    folder, ran = hostile
    with pytest.raises(CheckpointError, match="needs code of its own"):
        open_model(folder)
    assert not ran.exists()
    with pytest.raises(CheckpointError, match="has no trained head"):
        open_model(folder, trust_remote_code=True)
    assert ran.exists()


def test_code_of_a_tokenizer_does_not_run(tmp_path, monkeypatch):
    folder = corpus.model_folder(tmp_path / "base")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    path.write_text(json.dumps(config))
    (folder / "own.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asked"))
    assert models.load_processor(folder).is_fast  # Transformers has a class that reads the files
    assert not (tmp_path / "ran").exists()


def test_a_model_that_transformers_knows_needs_no_code(tmp_path):
    folder = corpus.model_folder(tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    model = open_model(folder).model
    assert type(model).__name__ == "BertModel"
    assert all(torch.isfinite(tensor).all() for tensor in model.parameters())


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "kernel_config"])
def test_a_kernel_from_elsewhere_is_code_too(key, tmp_path):
    folder = corpus.model_folder(tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: "someone/kernel"}))
    with pytest.raises(CheckpointError, match=f"code from elsewhere by `{key}`"):
        models.load_config(folder)


def test_a_kernel_for_a_part_of_a_model_is_code_too(tmp_path):
    folder = corpus.model_folder(tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] = {"attn_implementation": "someone/kernel"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="code from elsewhere by `attn_implementation`"):
        models.load_config(folder)


def test_trust_ends_with_its_block_and_is_not_withdrawn_inside():
    with models.trusting(), models.trusting(False):
        assert models.trusted()
    assert not models.trusted()
