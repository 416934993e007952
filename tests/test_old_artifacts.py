"""Artifacts of earlier versions load, verify and answer as on the day they were saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slimformer
from slimformer.bank import MaskBank
from slimformer.sizes import Elastic, is_elastic

ARTIFACTS = Path(__file__).parent / "artifacts"
RECORDS = ARTIFACTS / "answers.json"
#: A layout of packed weights → the artifact that has some in it.
LAYOUTS = {
    "binary": "binary",
    "ternary": "ternary",
    "ternary-small": "ternary-small",
    "int2": "int2",
    "int4": "int4",
    "int8": "int8",
}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def names() -> list[str]:
    return sorted(path.parent.name for path in ARTIFACTS.glob("*/slimformer.json"))


def masks() -> list[str]:
    return sorted(path.parent.name for path in ARTIFACTS.glob("*/mask.safetensors"))


def recorded(name: str) -> dict[str, Any]:
    """The requests to an artifact and what it answered."""
    answers: dict[str, dict[str, Any]] = json.loads(RECORDS.read_text())
    return answers[name]


def inputs_of(processor: Any, request: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The inputs for a recorded request: arguments of a tokenizer or image processor, and `choices` per question."""
    arguments = {name: value for name, value in request.items() if name != "choices"}
    if "images" in arguments:
        arguments["images"] = [np.array(image, dtype=np.uint8) for image in arguments["images"]]
    inputs = dict(processor(**arguments, return_tensors="pt"))
    if "choices" in request:
        inputs = {name: value.unflatten(0, (-1, request["choices"])) for name, value in inputs.items()}
    return inputs


def outputs_of(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor a model gives for some inputs, at every size it has."""
    with torch.no_grad():
        outputs = {name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)}
        if is_elastic(model):
            elastic = Elastic.of(model)
            for size in elastic.names:
                with elastic.at(size):
                    outputs |= {f"{name}@{size}": value for name, value in model(**inputs).items()}
    return outputs


def test_every_artifact_has_a_record():
    assert sorted(json.loads(RECORDS.read_text())) == names()


@pytest.mark.parametrize("name", names())
def test_verifies(name):
    report = slimformer.verify(ARTIFACTS / name)
    assert report.files
    assert report.outputs


@pytest.mark.parametrize("name", names())
def test_answers_as_recorded(name):
    record = recorded(name)
    loaded = slimformer.load(ARTIFACTS / name)
    outputs = outputs_of(loaded.model, inputs_of(loaded.processor, record["request"]))
    assert outputs.keys() == record["outputs"].keys()
    for key, values in record["outputs"].items():
        torch.testing.assert_close(outputs[key], torch.tensor(values), **TOLERANCE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_there(layout):
    manifest = slimformer.load(ARTIFACTS / LAYOUTS[layout]).manifest
    assert layout in (manifest.model.packed or [])


def test_masks_answer_together_in_a_bank():
    bank = MaskBank(ARTIFACTS / "base")
    questions = {}
    for name in masks():
        if recorded(name)["base"] == "base":
            bank.add(name, ARTIFACTS / name)
            questions[name] = recorded(name)["questions"]
    assert len(questions) >= 6
    logits, answers = bank.logits(questions, batch_size=5), bank.predict(questions, batch_size=5)
    for name in questions:
        check_logits(logits[name], recorded(name))
        check_answers(answers[name], recorded(name)["answers"])


def check_logits(rows: list[Any], record: dict[str, Any]) -> None:
    """Compare rows, which may be padded, with the outputs of the task's own model."""
    outputs = record["outputs"]
    pairs = list(zip(outputs["start_logits"], outputs["end_logits"], strict=True)) if "start_logits" in outputs else []
    for row, values in zip(rows, pairs or outputs["logits"], strict=True):
        for part, expected in zip(row, values, strict=False) if pairs else [(row, values)]:
            shared = min(len(part), len(expected))
            np.testing.assert_allclose(part[:shared], np.array(expected)[:shared], **TOLERANCE)


#: Type of an answer as it was recorded when answers were bare values → where it stands now that all are objects.
BARE = {float: "value", int: "index", list: "tags", str: "text"}


def check_answers(answers: list[Any], expected: list[Any]) -> None:
    """Compare answers, whose numbers may differ in their last digits and which may have come to say more."""
    for answer, other in zip(answers, expected, strict=True):
        for key, value in (other if isinstance(other, dict) else {BARE[type(other)]: other}).items():
            assert answer[key] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value)


@pytest.mark.parametrize("name", masks())
def test_a_mask_finds_the_base_that_lies_beside_it(name, tmp_path):
    record = recorded(name)
    for folder in (name, record["base"]):
        shutil.copytree(ARTIFACTS / folder, tmp_path / folder)
    bank = MaskBank()
    bank.add("task", tmp_path / name)
    check_logits(bank.logits({"task": record["questions"]})["task"], record)


def test_a_mask_of_odd_width():
    model = slimformer.load(ARTIFACTS / "mask-odd").model
    widths = {module.weight.shape[1] for module in model.modules() if isinstance(module, torch.nn.Linear)}
    assert all(width % 8 for width in widths)


def test_the_structured_mask_lacks_neurons_and_heads():
    whole, pruned = (slimformer.load(ARTIFACTS / name).model.bert.encoder.layer for name in ("mask", "mask-structured"))
    for layer, smaller in zip(whole, pruned, strict=True):
        assert smaller.attention.self.query.weight.shape[0] < layer.attention.self.query.weight.shape[0]
        assert smaller.intermediate.dense.weight.shape[0] < layer.intermediate.dense.weight.shape[0]
