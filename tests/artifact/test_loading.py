"""Loading gives the model that was saved or an error that says why not; it never runs code."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
import transformers as hf

from slimformer.artifact import load, read_manifest
from slimformer.artifact.checks import sum_file
from slimformer.errors import ArtifactError
from tests.artifact.conftest import tiny_bert, tiny_tokenizer
from tests.artifact.forging import edit, resum, sign


def test_gives_model_processor_and_manifest(saved: Path) -> None:
    loaded = load(saved)
    assert type(loaded.model) is hf.BertForSequenceClassification
    assert not loaded.model.training
    expected = tiny_bert().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.model.state_dict().items())
    assert loaded.processor("a fine film")["input_ids"] == tiny_tokenizer()("a fine film")["input_ids"]
    assert loaded.manifest == read_manifest(saved)


def test_reads_the_manifest_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_bytes = Path.read_bytes

    def watched(path: Path) -> bytes:
        read.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", watched)
    load(saved)
    assert read.count("slimformer.json") == 1


def test_takes_device_and_dtype(saved: Path) -> None:
    loaded = load(str(saved), device="cpu", dtype=torch.float16)
    assert loaded.model.dtype == torch.float16


@pytest.mark.parametrize("check", [True, False])
def test_sums_are_always_compared(artifact: Path, check: bool) -> None:
    path = artifact / "README.md"
    path.write_bytes(path.read_bytes().replace(b"slimformer", b"Slimformer"))
    with pytest.raises(ArtifactError, match=r"README\.md` of artifact .* was changed"):
        load(artifact, check=check)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_cut_file_whose_sums_agree_is_still_an_error(artifact: Path, name: str) -> None:
    path = artifact / name
    path.write_bytes(path.read_bytes()[:-9])
    resum(artifact)
    with pytest.raises(ArtifactError, match=path.stem):
        load(artifact, check=False)


def test_garbage_weights_with_agreeing_sums(artifact: Path) -> None:
    path = artifact / "model.safetensors"
    manifest = read_manifest(artifact)
    path.write_bytes(b"\xff" * path.stat().st_size)
    sign(artifact, files={**json.loads(manifest.to_bytes())["files"], "model.safetensors": sum_file(path).model_dump()})
    with pytest.raises(ArtifactError, match="is not a safetensors file"):
        load(artifact, check=False)


def test_config_of_another_size(artifact: Path) -> None:
    edit(artifact / "config.json", hidden_size=8)
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"do not belong together: `bert\..*has shape"):
        load(artifact)


def test_config_with_more_layers_never_gives_random_weights(artifact: Path) -> None:
    edit(artifact / "config.json", num_hidden_layers=3)
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"`bert.encoder.layer.2.* is missing"):
        load(artifact)


def test_config_with_fewer_layers_never_drops_weights(artifact: Path) -> None:
    edit(artifact / "config.json", num_hidden_layers=1)
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"`bert.encoder.layer.1.* has no place"):
        load(artifact)


def test_config_of_another_family(artifact: Path) -> None:
    model = hf.DistilBertForSequenceClassification(hf.DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2))
    model.config.architectures = ["DistilBertForSequenceClassification"]
    model.config.dtype = "float32"
    model.config.save_pretrained(artifact)
    resum(artifact)
    with pytest.raises(ArtifactError, match="do not belong together"):
        load(artifact)


def test_config_of_another_head_with_the_same_weights(artifact: Path) -> None:
    edit(artifact / "config.json", architectures=["BertForMultipleChoice"], num_labels=3)
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"do not belong together|is for a `BertForMultipleChoice`"):
        load(artifact)


@pytest.mark.parametrize("names", [None, [], "BertModel", ["BertModel", "BertForMaskedLM"], [3]])
def test_config_without_a_class(artifact: Path, names: object) -> None:
    edit(artifact / "config.json", architectures=names)
    resum(artifact)
    with pytest.raises(ArtifactError, match="architectures"):
        load(artifact)


@pytest.mark.parametrize("name", ["Bert", "BertConfig", "pipeline", "os", "__builtins__"])
def test_config_with_a_class_that_is_no_model(artifact: Path, name: str) -> None:
    edit(artifact / "config.json", architectures=[name])
    resum(artifact)
    with pytest.raises(ArtifactError, match=f"names the class `{name}`"):
        load(artifact)


class Bomb:
    """A pickle that tells when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "training_args.bin", "model.pt", "x.pkl", "deep/state.PTH"])
@pytest.mark.parametrize("listed", [True, False])
def test_refuses_pickles_by_name(
    artifact: Path, name: str, listed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (artifact / name).parent.mkdir(exist_ok=True)
    (artifact / name).write_bytes(pickle.dumps(Bomb()))
    if listed:
        resum(artifact)
    for check in (True, False):
        with pytest.raises(ArtifactError, match=f"`{name}`, which may be a pickle"):
            load(artifact, check=check)
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_in_the_place_of_the_weights_is_not_read(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = json.loads((artifact / "slimformer.json").read_bytes())
    (artifact / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    sums = sum_file(artifact / "model.safetensors").model_dump()
    sign(artifact, files={**manifest["files"], "model.safetensors": sums})
    with pytest.raises(ArtifactError):
        load(artifact, check=False)
    assert not (tmp_path / "exploded").exists()


CODE = """
from transformers import BertForSequenceClassification

open("exploded", "w").close()


class Mine(BertForSequenceClassification):
    pass
"""


def with_code(artifact: Path) -> None:
    (artifact / "mine.py").write_text(CODE)
    edit(artifact / "config.json", auto_map={"AutoModelForSequenceClassification": "mine.Mine"}, architectures=["Mine"])
    resum(artifact)
    model = json.loads((artifact / "slimformer.json").read_bytes())["model"]
    sign(artifact, model={**model, "architecture": "Mine"})


def test_runs_no_code_unless_asked(artifact: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with_code(artifact)
    with pytest.raises(ArtifactError, match=r"mine\.py.*trust_remote_code=True"):
        load(artifact)
    (artifact / "mine.py").unlink()
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"`auto_map`.*trust_remote_code=True"):
        load(artifact)
    assert not (tmp_path / "exploded").exists()


def test_runs_code_when_asked(artifact: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with_code(artifact)
    loaded = load(artifact, trust_remote_code=True)
    assert type(loaded.model).__name__ == "Mine"
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("key", ["auto_map", "_attn_implementation", "attn_implementation"])
def test_refuses_keys_that_fetch_code(artifact: Path, name: str, key: str) -> None:
    edit(artifact / name, nested={key: "someone/kernel"})
    resum(artifact)
    with pytest.raises(ArtifactError, match=f"{name}` asks to run code by `{key}`"):
        load(artifact)


def test_refuses_to_be_led_to_other_weights(artifact: Path) -> None:
    edit(artifact / "config.json", transformers_weights="other.safetensors")
    resum(artifact)
    with pytest.raises(ArtifactError, match="transformers_weights"):
        load(artifact)


def test_refuses_an_adapter(artifact: Path) -> None:
    (artifact / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"adapter_config\.json"):
        load(artifact)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/"), lambda path: path.symlink_to("gone")])
def test_refuses_what_is_no_file(artifact: Path, make) -> None:
    make(artifact / "odd.json")
    with pytest.raises(ArtifactError, match=r"odd\.json"):
        load(artifact)


def test_plain_checkpoint_is_told_apart(tmp_path: Path) -> None:
    tiny_bert().save_pretrained(tmp_path)
    with pytest.raises(ArtifactError, match=r"has no slimformer\.json.*; give .* or load a plain checkpoint with"):
        load(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no folder at"):
        load(tmp_path / "nowhere")


def test_missing_folder_points_to_what_an_interrupted_overwrite_left(artifact: Path) -> None:
    kept = artifact.with_name(f".{artifact.name}.old-01234567")
    artifact.rename(kept)
    with pytest.raises(ArtifactError, match=kept.name):
        load(artifact)


def test_loading_leaves_the_random_state_alone(saved: Path) -> None:
    state = torch.random.get_rng_state()
    load(saved)
    assert torch.equal(state, torch.random.get_rng_state())
