"""`quantize` with formats beyond the ternary one: three bits, and a format that is registered here."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import nn

import slimformer
from slimformer import quantize
from slimformer.errors import ArtifactError, ConfigError
from slimformer.formats import Layout, NumberFormat
from slimformer.methods.quantize import QuantizeConfig
from slimformer.registry import FORMATS
from slimformer.views import QuantizedView, attach, describe, packed_weights, quantize_weight, restore
from slimformer.views.rounding import in_floats
from tests import corpus

SETTINGS = {"task": "classification", "max_steps": 4, "batch_size": 8, "lr": 1e-3, "quiet": True}
NAME = "bert.encoder.layer.0.intermediate.dense.weight"


def toy_levels(units, counts):
    """The nearest of -1, -1/4, 0, 1/4 and 1, times the largest weight."""
    scales = units.abs().amax(dim=-1, keepdim=True)
    sizes = units.abs() / scales.where(scales > 0, 1)
    codes = sizes.gt(1 / 8).to(units.dtype).add_(sizes.gt(5 / 8))
    return codes * units.sign(), scales


@pytest.fixture
def toy():
    """Five levels that are not evenly spaced: three to a byte, or ten to three bytes."""
    number_format = NumberFormat(
        "toy",
        codes=range(-2, 3),
        levels=toy_levels,
        fast=Layout("toy", base=5, digits=3, lowest=-2),
        small=Layout("toy-small", base=5, digits=10, lowest=-2, bytes=3),
        values=(-1.0, -0.25, 0.0, 0.25, 1.0),
    )
    FORMATS.add("toy", number_format, "five levels")
    yield number_format
    if "toy" in FORMATS:
        FORMATS.remove("toy")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus.data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tuned(data, tmp_path_factory):
    base = corpus.model_folder(tmp_path_factory.mktemp("base"))
    folder = tmp_path_factory.mktemp("tuned") / "tuned"
    settings = {"epochs": 8, "batch_size": 16, "lr": 3e-3, "quiet": True}
    slimformer.finetune(model=base, task="classification", data=data, out=folder, **settings)
    return folder


def answer(model, processor):
    batch = processor(["the film was very good", "a dull plot"], return_tensors="pt", padding=True)
    with torch.no_grad():
        return model(**batch).logits


def assert_reloads_to_the_bit(result, folder, tmp_path):
    """Through slimformer, through Transformers, and through Transformers once more."""
    expected = answer(result.model, result.processor)
    loaded = slimformer.load(folder).model
    read = hf.AutoModelForSequenceClassification.from_pretrained(folder)
    read.save_pretrained(tmp_path / "again")
    again = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again")
    for model in (loaded, read, again):
        assert torch.allclose(answer(model, result.processor), expected, atol=1e-3)
        with in_floats(model):  # operators take sums in another order
            assert torch.equal(answer(model, result.processor), expected)
        for name, weight in result.model.state_dict().items():
            assert torch.equal(model.state_dict()[name], weight), name
    slimformer.verify(folder)


@pytest.mark.slow
def test_three_bits_from_training_to_reloading(tuned, data, tmp_path):
    folder = tmp_path / "out"
    result = quantize(model=tuned, data=data, out=folder, weights="3", **{**SETTINGS, "max_steps": 30})
    assert result.metrics["accuracy"] > 0.9
    assert slimformer.artifact.read_manifest(folder).steps[-1].config["weights"] == "int3"
    packed = packed_weights(result.model)
    assert {weight.layout.name for weight in packed.values()} == {"int3"}
    stored = load_file(folder / "packed.safetensors")
    for name, weight in packed.items():
        rows, columns = result.model.get_parameter(name).shape
        assert stored[f"{name}.int3"].shape == (rows, 3 * -(-columns // 8))
        assert len(result.model.get_parameter(name)[0].unique()) <= 8
        assert set(weight.unpack().unique().tolist()) <= {-7, -5, -3, -1, 1, 3, 5, 7}
    assert_reloads_to_the_bit(result, folder, tmp_path)


@pytest.mark.slow
def test_three_bits_are_exported_as_four(tuned, data, tmp_path):
    pytest.importorskip("onnxruntime")
    import onnx

    from slimformer.integrations.onnx import to_onnx

    quantize(model=tuned, data=data, out=tmp_path / "out", weights="int3", **SETTINGS)
    exported = to_onnx(tmp_path / "out", tmp_path / "out.onnx")
    assert exported.numbers == "packed"
    assert exported.matrices == len(packed_weights(slimformer.load(tmp_path / "out").model))
    nodes = [node for node in onnx.load(tmp_path / "out.onnx").graph.node if node.op_type == "MatMulNBits"]
    assert nodes
    for node in nodes:
        assert {item.name: item.i for item in node.attribute}["bits"] == 4


def test_a_view_of_a_foreign_format_trains(toy):
    torch.manual_seed(0)
    linear = nn.Linear(20, 6)
    attach(linear, QuantizedView("toy"))
    twin = restore(nn.Linear(20, 6), copy.deepcopy(json.loads(json.dumps(describe(linear)))))
    twin.load_state_dict(linear.state_dict())
    assert torch.equal(twin.weight, linear.weight)
    x, target = torch.randn(64, 20), torch.randn(64, 6)
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(linear(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(len(row.unique()) <= 5 for row in linear.weight)
    assert torch.equal(linear.weight, quantize_weight(linear.parametrizations.weight.original, toy))


@pytest.mark.slow
@pytest.mark.parametrize(("packing", "layout", "size"), [("fast", "toy", 11), ("small", "toy-small", 12)])
def test_a_foreign_format_from_training_to_reloading(toy, tuned, data, tmp_path, packing, layout, size):
    assert QuantizeConfig(weights="toy").weights == "toy"
    folder = tmp_path / "out"
    result = quantize(model=tuned, data=data, out=folder, weights="toy", packing=packing, **SETTINGS)
    stored = load_file(folder / "packed.safetensors")
    assert stored[f"{NAME}.{layout}"].shape[-1] == size  # of 32 codes
    assert slimformer.artifact.read_manifest(folder).model.packed == [layout]
    assert_reloads_to_the_bit(result, folder, tmp_path)


@pytest.mark.slow
def test_what_no_operator_of_onnx_holds_is_exported_in_float(toy, tuned, data, tmp_path):
    pytest.importorskip("onnxruntime")
    from slimformer.integrations.onnx import to_onnx

    quantize(model=tuned, data=data, out=tmp_path / "out", weights="toy", activations="none", **SETTINGS)
    with pytest.raises(ArtifactError, match="is toy, which no operator of ONNX computes with"):
        to_onnx(tmp_path / "out", tmp_path / "out.onnx")
    assert to_onnx(tmp_path / "out", tmp_path / "out.onnx", numbers="float").difference.relative < 1e-3


def test_the_command_takes_a_foreign_format(toy, tuned, data, tmp_path, capsys):
    from slimformer.cli.app import main

    command = f"quantize --model {tuned} --task classification --data {data} --weights toy --max-steps 1 --quiet --json"
    main([*command.split(), "--out", str(tmp_path / "out")])
    assert json.loads(capsys.readouterr().out)["steps"] == 1


def test_a_format_that_is_not_there_is_named(toy, tuned, data, tmp_path):
    quantize(model=tuned, data=data, out=tmp_path / "out", weights="toy", **SETTINGS)
    FORMATS.remove("toy")
    with pytest.raises(ArtifactError, match=r"there is no layout `toy`; known: ternary, .*install"):
        slimformer.load(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"there is no format `toy`; known: ternary, .*, int8, float"):
        QuantizeConfig.make({"weights": "toy"})
