"""Whole forwards of the engine against the reference in NumPy, bit by bit, on every instruction set."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import slimformer
from slimformer.artifact import Step
from slimformer.artifact.storage.per_block import PerBlockStorage
from slimformer.runtime.architecture import ARCHITECTURES
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import VARIABLE, is_built, kernels
from slimformer.runtime.shared import SharedEncoder, TaskParts
from slimformer.sizes import extract, make_elastic
from slimformer.views import QuantizedView
from tests import zoo
from tests.elastic import NESTINGS
from tests.parameters import slow
from tests.runtime.exact.encoder import NAMES, ExactEncoder
from tests.runtime.test_encoder import PAIRS, images, model_of, quantized, same_bits, save, sequences

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

#: Texts of these lengths: one token, more than a vector of keys, and as many as a model takes.
LENGTHS = (9, 1, 33, 16, 17, 2)
#: Parameters that guard the room in `make quick`: BERT, a family of norms before its sub-layers, and one with biases.
GUARDS = {
    ("bert", "ForSequenceClassification", "ternary"),
    ("bert", "ForSequenceClassification", "int8"),
    ("mpnet", "Model", "ternary"),
    ("mpnet", "Model", "int8"),
    ("modernbert", "Model", "ternary"),
    ("modernbert", "Model", "int8"),
    ("vit", "ForImageClassification", "ternary"),
}


def answers(folder, family, asked, monkeypatch):
    """What each instruction set says of all that is asked in one batch, one row after the other."""
    for isa in kernels().instruction_sets():
        monkeypatch.setenv(VARIABLE, isa)
        engine = NativeEncoder(folder, threads=1)
        assert engine.instruction_set == isa
        yield engine.run_images(asked) if family in zoo.IMAGES else engine.run(asked)


def assert_exact(folder, family, monkeypatch, lengths=LENGTHS, *, distinct=True):
    reference = ExactEncoder(folder)
    asked = images(4) if family in zoo.IMAGES else sequences(lengths)
    run = reference.run_image if family in zoo.IMAGES else reference.run
    expected = np.concatenate([run(each) for each in asked])
    if distinct:  # so that none can stand for another
        assert len({row.tobytes() for row in expected}) == len(expected)
    for answer in answers(folder, family, asked, monkeypatch):
        assert same_bits(answer, expected)


def test_the_reference_has_all_families():
    assert set(NAMES) == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("family", "head", "view"),
    slow([(*pair, view) for pair in PAIRS for view in ("ternary", "int8", "float32")], but=GUARDS),
)
def test_the_engine_has_the_bits_of_the_reference(tmp_path, family, head, view, monkeypatch):
    save(tmp_path, family, head, floats=view == "float32", view=view)
    assert_exact(tmp_path, family, monkeypatch, (*LENGTHS, 62))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert", "vit"])
def test_every_block_has_the_bits_of_the_reference(tmp_path, family, blocks, monkeypatch):
    """So that no difference of one block can be lost in those behind it."""
    save(tmp_path, family, "Model")
    config = json.loads((tmp_path / "config.json").read_text())
    name = "n_layers" if family == "distilbert" else "num_hidden_layers"
    config[name] = blocks
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:blocks]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_exact(tmp_path, family, monkeypatch)


@pytest.mark.parametrize("view", ["binary", "int2", "int3", "int4", "groups", "ternary, small"])
@pytest.mark.parametrize("family", slow(["bert", "modernbert"], but={"bert"}))
def test_every_format_has_the_bits_of_the_reference(tmp_path, family, view, monkeypatch):
    grouped = view == "groups"
    made = (lambda: QuantizedView("int4", granularity="group", group_size=16)) if grouped else view.split(",")[0]
    save(tmp_path, family, view=made, small="small" in view)
    assert_exact(tmp_path, family, monkeypatch)


@pytest.mark.parametrize("family", slow(["bert", "modernbert", "electra", "vit"], but={"bert"}))
def test_bfloat16_has_the_bits_of_the_reference(tmp_path, family, monkeypatch):
    model_of(family, "Model").bfloat16().save_pretrained(tmp_path)
    assert_exact(tmp_path, family, monkeypatch)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heads=st.integers(1, 5),
    width=st.integers(1, 40),
    ffn=st.integers(1, 300),
    activation=st.sampled_from(["gelu", "relu", "silu", "gelu_pytorch_tanh"]),
    view=st.sampled_from(["ternary", "int8", "float32"]),
    seed=st.integers(0, 99),
)
def test_shapes_of_any_size_have_the_bits_of_the_reference(
    tmp_path_factory, monkeypatch, heads, width, ffn, activation, view, seed
):
    folder = tmp_path_factory.mktemp("shape")
    shape = {"hidden_size": heads * width, "num_attention_heads": heads, "intermediate_size": ffn}
    torch.manual_seed(seed)
    rest = {"num_hidden_layers": 2, "vocab_size": 99, "max_position_embeddings": 64}
    model = zoo.enliven(hf.BertModel(hf.BertConfig(**shape, **rest, hidden_act=activation))).eval()
    if view != "float32":
        quantized(model, view)
    model.save_pretrained(folder)
    assert_exact(folder, "bert", monkeypatch, (5, 21), distinct=False)  # a norm of one number has one answer


def test_types_of_tokens_and_padding_inside_a_text(tmp_path):
    save(tmp_path / "bert", "bert")
    ids, types = [5, 6, 7, 8, 9], [0, 0, 1, 1, 0]
    with_types = ExactEncoder(tmp_path / "bert").run(ids, types)
    assert same_bits(NativeEncoder(tmp_path / "bert").run([ids], [types]), with_types)
    assert not same_bits(with_types, ExactEncoder(tmp_path / "bert").run(ids))
    save(tmp_path / "mpnet", "mpnet", "Model")
    for ids in ([0, 5, 1, 6, 2], [1, 1, 5]):
        assert same_bits(NativeEncoder(tmp_path / "mpnet").run([ids]), ExactEncoder(tmp_path / "mpnet").run(ids))


@pytest.mark.parametrize("view", ["ternary", "float32"])
@pytest.mark.parametrize("nesting", slow(["neurons", "heads"], but={"heads"}))
def test_blocks_that_lost_heads_and_neurons_have_the_bits_of_the_reference(tmp_path, nesting, view, monkeypatch):
    model = model_of("bert", "Model")
    make_elastic(model, NESTINGS[nesting])
    narrow = extract(model, "S,M,XL")
    if view != "float32":
        quantized(narrow, view)
    storage = PerBlockStorage() if view == "float32" else None
    slimformer.save(tmp_path / "out", narrow, step=Step(method="elastic"), storage=storage)
    assert_exact(tmp_path / "out", "bert", monkeypatch)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["quantization_config"]["blocks"][1]["neurons"] += 1
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="intermediate_size"):
        NativeEncoder(tmp_path / "out")


@pytest.mark.parametrize(
    "blocks", [[], [{}] * 3, [{"neurons": "16"}] * 3, [{"neurons": 64}] * 2, {"neurons": 16}, 7, [None] * 3]
)
def test_forged_descriptions_of_blocks_are_refused(tmp_path, blocks):
    save(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["blocks"] = blocks
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="`blocks`"):
        NativeEncoder(tmp_path)


@pytest.mark.parametrize("dropped", [0.05, 0.5, 0.9])
def test_masked_tasks_have_the_bits_of_the_reference(tmp_path, dropped):
    """What a task drops is summed by itself, and taken off the product that it shares."""
    base = model_of("bert", "Model")
    base.save_pretrained(tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    draw = np.random.default_rng(0)
    names = ("encoder.layer.1.attention.self.key", "encoder.layer.1.output.dense", "encoder.layer.2.intermediate.dense")
    shapes = {name: base.get_submodule(name).weight.shape for name in (*names, "pooler.dense")}
    kept = {name: draw.random(shape) >= dropped for name, shape in shapes.items()}
    own = {"classifier.weight": torch.randn(3, 48), "classifier.bias": torch.randn(3)}
    config = {**config, "architectures": ["BertForSequenceClassification"]}
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "config.json").write_text(json.dumps(config))
    tensors = {f"bert.{name}": tensor.contiguous() for name, tensor in base.state_dict().items()}
    save_file({**tensors, **own}, tmp_path / "task" / "model.safetensors", {"format": "pt"})
    reference = ExactEncoder(tmp_path / "task", {f"bert.{name}": bits for name, bits in kept.items()})
    expected = [reference.run(ids) for ids in sequences()]
    shared = SharedEncoder(tmp_path / "base", config, threads=1)
    bits = {f"{name}.weight": each.astype(np.uint8) for name, each in kept.items()}
    parts = TaskParts("task", config, bits, {name: tensor.numpy() for name, tensor in own.items()}, "bert.")
    for isa in kernels().instruction_sets():
        shared.instruction_set = isa
        found = shared.run_tasks(sequences(), [shared.task(parts)] * len(expected))
        assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
