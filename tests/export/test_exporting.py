"""Files that ONNX Runtime runs, and that answer as their models do."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer import models
from slimformer.errors import ArtifactError, CheckpointError, ConfigError, UnknownFamilyError
from slimformer.integrations.onnx import to_onnx
from slimformer.integrations.onnx.matrices import replace_matrices
from slimformer.integrations.onnx.sources import working_copies
from slimformer.views import QuantizedView, attach, rounding_of, unrounded
from tests import runs, zoo
from tests.conftest import ROOT
from tests.export import making

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def ask(path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, {name: value.numpy() for name, value in inputs.items()})
    return dict(zip(names, map(torch.from_numpy, found), strict=True))


def operators(path, name: str) -> list[dict[str, int]]:
    """The settings of every operator of that name in a file."""
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == name]
    return [{setting.name: setting.i for setting in node.attribute} for node in nodes]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model in float and its file."""
    folder = tmp_path_factory.mktemp("plain")
    model = making.bert()
    result = to_onnx(model, folder / "model.onnx")
    assert runs.listing(folder) == {"model.onnx"}
    return model, result


@pytest.mark.slow
def test_what_an_export_tells(plain):
    _, result = plain
    assert (result.architecture, result.numbers, result.matrices) == ("BertForSequenceClassification", "float", 0)
    assert result.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert result.outputs == ("logits",)
    assert result.opset == {each.domain: each.version for each in onnx.load(result.path).opset_import}[""]
    assert result.bytes == result.path.stat().st_size
    assert result.difference.relative < 1e-4
    assert result.difference.agreement == 1


@pytest.mark.parametrize("padding", ["right", "left", None])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 30), (5, 13), (2, 64)])
def test_batches_and_lengths_other_than_those_traced(plain, padding, batch, length):
    model, result = plain
    inputs = zoo.inputs_for("bert", padding, batch, length)
    inputs["token_type_ids"] = (torch.arange(length) % 2).expand(batch, -1).contiguous()
    with torch.no_grad():
        expected = model(**inputs).logits
    torch.testing.assert_close(ask(result.path, inputs)["logits"], expected, rtol=1e-4, atol=1e-5)


#: Families whose code differs most, each in other numbers and widths; an export takes seconds.
EXPORTED = [
    ("roberta", "ternary", {"hidden_size": 100}),
    ("distilbert", "ternary", {"dim": 312}),
    ("deberta-v2", "ternary", {}),
    ("modernbert", "int8", {}),
    ("mpnet", "ternary", {}),
    ("t5", "ternary", {}),
    ("vit", "ternary", {"hidden_size": 192}),
    ("vit_mae", "float", {}),
    ("gpt2", "ternary", {}),
    ("gemma", "int8", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "numbers", "sizes"), EXPORTED)
def test_families(tmp_path, family, numbers, sizes):
    model = making.headed(family, **sizes)
    if numbers == "ternary":
        making.quantized(model)
    result = to_onnx(model, tmp_path / "model.onnx", numbers=numbers)
    assert runs.listing(tmp_path) == {"model.onnx"}
    assert result.outputs
    matrices = operators(result.path, "MatMulNBits")
    if numbers == "float":
        assert result.difference.relative < 1e-4
        assert matrices == []
        return
    assert result.difference.relative < 0.2
    assert len(matrices) + len(operators(result.path, "GatherBlockQuantized")) >= result.matrices > 0
    assert {each["accuracy_level"] for each in matrices} == {4}
    assert {each["bits"] for each in matrices} == {2 if numbers == "ternary" else 8}
    assert {each["block_size"] for each in matrices} <= {32, 64, 128}


@pytest.mark.slow
def test_a_quantized_model_is_left_as_it_was(tmp_path):
    model = making.quantized(making.bert(100), embedding="8", granularity="group", group_size=32).train()
    config, state = model.config.to_dict(), {name: value.clone() for name, value in model.state_dict().items()}
    inputs = zoo.inputs_for("bert")
    with torch.no_grad():
        expected = model.eval()(**inputs).logits
    model.train()
    result = to_onnx(model, tmp_path / "model.onnx")
    assert result.numbers == "packed"
    assert model.training
    assert rounding_of(model) is not None
    assert model.config.to_dict() == config
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model.eval()(**inputs).logits, expected)
    assert {(each["bits"], each["block_size"]) for each in operators(result.path, "MatMulNBits")} == {(2, 32)}
    assert [each["bits"] for each in operators(result.path, "GatherBlockQuantized")] == [8]
    # Nothing of this machine or of the sources is in the file, and the floats that fit lie in 16 bits.
    content = result.path.read_bytes()
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content
    stored = {each.name: each for each in onnx.load(result.path).graph.initializer}
    positions = stored["model.bert.embeddings.position_embeddings.weight.half"]
    assert positions.data_type == onnx.TensorProto.FLOAT16


@pytest.mark.slow
def test_float_of_a_quantized_model_and_weights_beside_the_graph(tmp_path):
    model = making.quantized(making.bert())
    result = to_onnx(model, tmp_path / "a.onnx", numbers="float", one_file=0)
    # The file is exact, which is checked inside; what is left is that the source rounds activations and the file not.
    assert 1e-4 < result.difference.relative < 0.2
    assert runs.listing(tmp_path) == {"a.onnx", "a.onnx.data"}
    sizes = [(tmp_path / name).stat().st_size for name in ("a.onnx", "a.onnx.data")]
    assert sizes[0] < sizes[1]
    assert result.bytes == sum(sizes)
    moved = (tmp_path / "elsewhere").resolve()
    moved.mkdir()
    for name in ("a.onnx", "a.onnx.data"):
        (tmp_path / name).rename(moved / name)
    inputs = zoo.inputs_for("bert")
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    with torch.no_grad(), unrounded(model):
        expected = model(**inputs).logits
    torch.testing.assert_close(ask(moved / "a.onnx", inputs)["logits"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(tmp_path, plain):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x0a\x12\x07another")
    with pytest.raises(ArtifactError, match="exists; choose another `--out`"):
        to_onnx(making.bert(), path)
    assert path.read_bytes() == b"\x08\x0a\x12\x07another"
    to_onnx(making.bert(), path, overwrite=True)
    assert path.read_bytes() == plain[1].path.read_bytes()


@pytest.mark.slow
def test_minilm_with_a_head(tmp_path):
    try:
        model = models.load_model("minilm", hf.BertForSequenceClassification, num_labels=3)
    except CheckpointError as error:
        pytest.skip(str(error))
    tokenizer = hf.AutoTokenizer.from_pretrained(models.resolve("minilm"))
    texts = ["a film to remember", "no", "the plot is thin, the cast is not, and one hour would have done"]
    inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    result = to_onnx(making.quantized(model), tmp_path / "model.onnx", numbers="ternary", batches=[inputs])
    assert (result.matrices, result.difference.examples) == (38, 3)
    assert result.bytes < 7_000_000
    widths = {(each["K"], each["block_size"]) for each in operators(result.path, "MatMulNBits")}
    assert widths == {(384, 128), (1536, 128)}
    with torch.no_grad():
        of_source = model(**inputs).logits
        with unrounded(model):
            unrounded_source = model(**inputs).logits
    found = ask(result.path, inputs)["logits"]
    assert result.difference.largest == pytest.approx(float((found - of_source).abs().max()), rel=1e-3)
    assert (found - unrounded_source).abs().max() < 0.1 * unrounded_source.abs().max()


def test_a_packed_model_in_half_precision_is_what_its_codes_say():
    model = making.quantized(making.bert())
    inputs = zoo.inputs_for("bert")
    with torch.no_grad():
        expected = model(**inputs).logits
        source, traced = working_copies(model.to(torch.float16))
        assert next(model.parameters()).dtype == torch.float16
        assert torch.equal(source(**inputs).logits, expected)
    assert replace_matrices(traced, "ternary") == 8


@pytest.mark.parametrize(
    ("numbers", "options", "message"),
    [
        ("ternary", None, r"no ternary weights \(its weights are floats\); run `slimformer quantize"),
        ("packed", None, "no packed weights; run `slimformer quantize` first"),
        ("ternary", {"weights": "4"}, r"no ternary weights \(its weights are int4\)"),
        ("ternary", {"granularity": "group", "group_size": 24}, "has one scale for 24 weights"),
    ],
)
def test_numbers_a_model_has_not(tmp_path, numbers, options, message):
    model = making.bert() if options is None else making.quantized(making.bert(), **options)
    with pytest.raises(ArtifactError, match=message):
        to_onnx(model, tmp_path / "model.onnx", numbers=numbers)
    assert runs.listing(tmp_path) == set()


def test_models_that_cannot_be_exported(tmp_path):
    opt = hf.OPTConfig(num_hidden_layers=1, hidden_size=12, ffn_dim=8, word_embed_proj_dim=12)
    with pytest.raises(UnknownFamilyError, match="`opt` is not known"):
        to_onnx(hf.OPTModel(opt), tmp_path / "model.onnx")
    viewed = making.bert()
    attach(viewed.bert.pooler.dense, QuantizedView("ternary", "matrix"))
    with pytest.raises(ArtifactError, match=r"`bert.pooler.dense` still has a view on it"):
        to_onnx(viewed, tmp_path / "model.onnx")
    changed = making.quantized(making.bert())
    changed.bert.pooler.dense.weight.data.add_(1)
    with pytest.raises(ArtifactError, match=r"`bert.pooler.dense.weight` was changed after it was packed"):
        to_onnx(changed, tmp_path / "model.onnx")
    diverged = making.bert()
    diverged.classifier.bias.data.fill_(torch.nan)
    with pytest.raises(ArtifactError, match="nan or infinity in `logits`"):
        to_onnx(diverged, tmp_path / "model.onnx")
    assert runs.listing(tmp_path) == set()


@pytest.mark.slow
def test_a_model_that_cannot_be_traced(tmp_path):
    class Wavering(hf.BertForSequenceClassification):
        def forward(self, **inputs):
            answer = super().forward(**inputs)
            if float(answer.logits.sum()) > 0:
                answer.logits = answer.logits + 1
            return answer

    model = making.bert()
    model.__class__ = Wavering
    with pytest.raises(ArtifactError, match="`Wavering` of family `bert` cannot be traced for ONNX: "):
        to_onnx(model, tmp_path / "model.onnx")
    assert runs.listing(tmp_path) == set()


def test_settings_that_cannot_be(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="`numbers` is `int3`; give one of float, int8, ternary, packed"):
        to_onnx(making.bert(), tmp_path / "model.onnx", numbers="int3")
    with pytest.raises(ConfigError, match="`length` is 0"):
        to_onnx(making.bert(), tmp_path / "model.onnx", length=0)
    with pytest.raises(ConfigError, match="`length` is 65, but the model has 64 positions"):
        to_onnx(making.bert(), tmp_path / "model.onnx", length=65)
    with pytest.raises(ConfigError, match="a batch has the inputs input_ids; give input_ids, attention_mask"):
        to_onnx(making.bert(), tmp_path / "model.onnx", batches=[{"input_ids": torch.ones(1, 2)}])
    with pytest.raises(ConfigError, match="`batches` is empty"):
        to_onnx(making.bert(), tmp_path / "model.onnx", batches=[])
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ConfigError, match=r"`onnxscript`, which is not installed; run: pip install .slimformer\[onnx\]"
    ):
        to_onnx(making.bert(), tmp_path / "model.onnx")
    assert runs.listing(tmp_path) == set()


@pytest.mark.slow
def test_answers_do_not_depend_on_what_else_is_in_the_batch(tmp_path):
    result = to_onnx(making.bert(312), tmp_path / "model.onnx", numbers="int8")
    assert {(each["bits"], each["K"]) for each in operators(result.path, "MatMulNBits")} == {(8, 312), (8, 624)}
    inputs = zoo.inputs_for("bert", padding="right", batch=3, length=12)
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    together = ask(result.path, inputs)["logits"]
    for row, real in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = ask(result.path, {name: value[row : row + 1, :real] for name, value in inputs.items()})["logits"]
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)
