"""What an artifact was made for is compared with its config by every way of opening it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

import slimformer
from slimformer.artifact import MaskStorage, Step
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, ConfigError, PathError
from slimformer.inference.pipeline import open_pipeline
from tests import runs
from tests.artifact.forging import edit, resum
from tests.test_old_artifacts import ARTIFACTS

if TYPE_CHECKING:
    from pathlib import Path


def forged(name: str, folder: Path, **changes: object) -> Path:
    shutil.copytree(ARTIFACTS / name, folder)
    edit(folder / "config.json", **changes)
    resum(folder)
    return folder


@pytest.mark.parametrize("way", [slimformer.load, slimformer.verify, open_pipeline])
@pytest.mark.parametrize("name", ["classifier", "int4", "sharded"])
def test_a_changed_label_of_an_early_artifact_is_refused_everywhere(name, way, tmp_path):
    labels = json.loads((ARTIFACTS / name / "config.json").read_text())["id2label"]
    folder = forged(name, tmp_path / "m", id2label={number: f"{label}x" for number, label in labels.items()})
    with pytest.raises(ArtifactError, match="by its manifest the artifact is for"):
        way(folder)


@pytest.mark.parametrize("way", [slimformer.load, slimformer.verify, open_pipeline])
def test_another_problem_type_is_refused_everywhere(way, tmp_path):
    with pytest.raises(ArtifactError, match="problem type `regression`"):
        way(forged("classifier", tmp_path / "m", problem_type="regression"))


@pytest.mark.parametrize("way", [slimformer.load, slimformer.verify])
def test_a_cast_base_is_for_masks_alone(way):
    with pytest.raises(ArtifactError, match=r"is for masks, and `.*classifier` is none"):
        way(ARTIFACTS / "classifier", cast_base=True)


def test_a_base_whose_heads_do_not_fit_is_another_base(tmp_path):
    loaded, file = slimformer.load(ARTIFACTS / "mask"), MaskFile.read(ARTIFACTS / "mask" / "mask.safetensors")
    how = {"storage": MaskStorage(kept=file.kept), "base": ARTIFACTS / "base", "task": loaded.manifest.task}
    slimformer.save(tmp_path / "mask", loaded.model, processor=loaded.processor, step=Step(method="mask"), **how)
    runs.run("verify", tmp_path / "mask", "--base", "minilm").refused(
        "`minilm` is not the base of the mask", "its heads and widths make no BertForSequenceClassification"
    )


@pytest.mark.parametrize("value", [5, {}, [1]])
def test_layouts_of_a_packed_model_are_names(value, tmp_path):
    described = json.loads((ARTIFACTS / "int4" / "config.json").read_text())["quantization_config"]
    folder = forged("int4", tmp_path / "m", quantization_config={**described, "layouts": value})
    runs.run("inspect", folder).refused("`layouts`", "which no packed model has")


@pytest.mark.parametrize("name", [None, 5, True, [], b"x", object()])
@pytest.mark.parametrize("way", [slimformer.load, slimformer.verify, open_pipeline])
def test_what_is_no_path_is_refused(way, name):
    with pytest.raises(PathError, match="is no path"):
        way(name)


@pytest.mark.parametrize("device", ["x", "", "meta", "cuda:99", []])
def test_a_device_that_is_not_there_is_refused_before_loading(device):
    with pytest.raises(ConfigError, match="`--device` is"):
        slimformer.load(ARTIFACTS / "classifier", device=device)
    with pytest.raises(ConfigError, match="`--device` is"):
        MaskBank(device=device)


@pytest.mark.parametrize("dtype", ["int8", "float17", "complex64", 5, {}])
def test_a_type_that_no_weight_has_is_refused_before_loading(dtype):
    with pytest.raises(ConfigError, match="`dtype` is"):
        slimformer.load(ARTIFACTS / "classifier", dtype=dtype)
