"""Files that say what the model is, hold its weights, and are there whole or not at all."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import transformers as hf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slimformer.anatomy import Anatomy
from slimformer.errors import ArtifactError, ConfigError, UnknownFamilyError
from slimformer.formats.gguf import Q2_0
from slimformer.integrations.gguf import to_gguf
from slimformer.integrations.gguf.rope import rope_factors
from slimformer.models.sentence import SentenceSettings
from slimformer.views import QuantizedView, attach, packed_weights
from tests import runs
from tests.export import making as quantizing
from tests.integrations.gguf import making

gguf = pytest.importorskip("gguf")
#: How far half precision is from a number, as a share of it.
HALF = 2**-11


@pytest.fixture(scope="module")
def processor():
    return making.word_piece()


def bert(processor, **settings):
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 1}
    return making.model("bert", hf.BertModel, processor, **{**sizes, **settings})


def contents(path):
    """Everything that a file says, and its tensors by name."""
    reader = gguf.GGUFReader(path)
    said = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return said, {tensor.name: tensor for tensor in reader.tensors}


def test_what_a_decoder_says(tmp_path):
    processor = making.sentence_piece()
    model = making.model("llama", hf.LlamaForCausalLM, processor, head_dim=20)
    result = to_gguf(model, tmp_path / "model.gguf", numbers="float16", processor=processor)
    said, tensors = contents(result.path)
    tokens = said.pop("tokenizer.ggml.tokens")
    assert len(said.pop("tokenizer.ggml.scores")) == len(said.pop("tokenizer.ggml.token_type")) == len(tokens)
    assert tokens[0:2] == ["<unk>", "<s>"]
    assert tokens[-1] == f"[PAD{len(processor) + 2}]"
    assert {name: value if not isinstance(value, float) else round(value, 8) for name, value in said.items()} == {
        "general.architecture": "llama",
        "general.type": "model",
        "general.file_type": 1,
        "general.quantization_version": 2,
        "llama.context_length": 64,
        "llama.embedding_length": 48,
        "llama.block_count": 3,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 20,
        "llama.attention.value_length": 20,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": 20,
        "llama.rope.freq_base": 10000,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    assert result.as_dict() == {
        "path": str(result.path),
        "architecture": "LlamaForCausalLM",
        "computed_as": "llama",
        "numbers": "float16",
        "bytes": result.path.stat().st_size,
        "types": {"F16": 23, "F32": 7},
        "rounding": pytest.approx(0.0002, abs=HALF),
        "rounded": result.rounded,
    }
    assert {name for name, tensor in tensors.items() if tensor.tensor_type.name == "F32"} == {
        "output_norm.weight",
        *(f"blk.{block}.{norm}.weight" for block in range(3) for norm in ("attn_norm", "ffn_norm")),
    }
    # llama.cpp rotates neighbours, Transformers the two halves of a head.
    query = model.model.layers[1].self_attn.q_proj.weight.detach().view(4, 2, 10, 48).half()
    stored = torch.from_numpy(tensors["blk.1.attn_q.weight"].data.copy()).view(4, 10, 2, 48)
    assert torch.equal(stored, query.transpose(1, 2))


@pytest.mark.parametrize(
    ("pooling", "number"), [("mean", 1), ("cls", 2), ("lasttoken", 3), ("max", None), (("cls", "mean"), None)]
)
def test_how_an_encoder_pools(pooling, number, processor, tmp_path):
    sentence = SentenceSettings((pooling,) if isinstance(pooling, str) else pooling)
    for part in (bert(processor), processor):
        part.save_pretrained(tmp_path / "model")
    sentence.write(tmp_path / "model", 64)
    if number is None:
        with pytest.raises(ArtifactError, match=r"vectors are pooled by .*, and llama.cpp pools by one of mean, cls"):
            to_gguf(tmp_path / "model", tmp_path / "model.gguf")
        return
    said, _ = contents(to_gguf(tmp_path / "model", tmp_path / "model.gguf").path)
    assert (said["bert.pooling_type"], said["bert.attention.causal"]) == (number, False)
    assert (said["tokenizer.ggml.token_type_count"], said["bert.context_length"]) == (2, 64)
    assert str(tmp_path) not in str(said)


def test_classes_have_their_names(processor, tmp_path):
    labels = {0: "dull", 1: "fine", 2: "great"}
    model = making.model("bert", hf.BertForSequenceClassification, processor, num_labels=3, id2label=labels)
    said, tensors = contents(to_gguf(model, tmp_path / "model.gguf", processor=processor).path)
    assert (said["bert.pooling_type"], said["bert.classifier.output_labels"]) == (4, ["dull", "fine", "great"])
    assert np.array_equal(tensors["cls.weight"].data, model.bert.pooler.dense.weight.detach().numpy())
    assert np.array_equal(tensors["cls.output.weight"].data, model.classifier.weight.detach().numpy())


@pytest.mark.parametrize("granularity", ["matrix", "row", "group"])
def test_ternary_codes_are_in_the_file_as_they_are(granularity, processor, tmp_path):
    group = {"group_size": 256} if granularity == "group" else {}
    model = bert(processor, hidden_size=256, intermediate_size=512)
    model = quantizing.quantized(model, weights="ternary", granularity=granularity, **group)
    result = to_gguf(model, tmp_path / "model.gguf", numbers="tq2_0", processor=processor)
    assert (result.types["TQ2_0"], result.numbers) == (7, "tq2_0")
    assert 0 < result.rounding <= HALF
    _, tensors = contents(result.path)
    packed = packed_weights(model)["encoder.layer.0.output.dense.weight"]
    stored = gguf.quants.dequantize(tensors["blk.0.ffn_down.weight"].data, gguf.GGMLQuantizationType.TQ2_0)
    assert np.array_equal(np.sign(stored), packed.unpack().numpy())
    halves = packed.replaced(packed.unpack(), packed.scales.half().float())
    assert np.array_equal(stored, halves.weight().numpy())


def test_blocks_that_the_package_does_not_know(processor, tmp_path):
    """`gguf` 0.19 has no Q2_0, so the bytes are looked for in the file."""
    model = quantizing.quantized(bert(processor), weights="ternary", embedding="float")
    result = to_gguf(model, tmp_path / "model.gguf", numbers="q2_0", processor=processor)
    assert result.types == {"F32": 14, "Q2_0": 6, "F16": 1}
    packed = packed_weights(model)["encoder.layer.0.output.dense.weight"]
    blocks = Q2_0.pack(packed.unpack(), Q2_0.spread(packed.scales, 64, 256))
    assert blocks.numpy().tobytes() in result.path.read_bytes()


def test_packed_is_the_smallest_type_for_each(processor, tmp_path):
    model = quantizing.quantized(bert(processor, hidden_size=96), weights="ternary", embedding="int8")
    result = to_gguf(model, tmp_path / "model.gguf", processor=processor)
    # 96 weights are three blocks of 32; 256 are one of TQ2_0; the token table has 8 bits.
    assert (result.numbers, result.types) == ("packed", {"F32": 14, "Q4_0": 5, "TQ2_0": 1, "Q8_0": 1})


#: Families that hold matrices in other orders than llama.cpp: halves of heads, three in one, [in, out].
ORDERED = [
    ("llama", hf.LlamaForCausalLM, {"hidden_size": 96, "head_dim": 24, "intermediate_size": 96}),
    ("gpt_neox", hf.GPTNeoXForCausalLM, {"hidden_size": 96, "intermediate_size": 96}),
    ("gpt2", hf.GPT2LMHeadModel, {"n_embd": 96, "n_inner": 96}),
]


@pytest.mark.parametrize("granularity", ["matrix", "row"])
@pytest.mark.parametrize(("family", "architecture", "settings"), ORDERED)
def test_codes_are_in_the_same_order_as_floats(family, architecture, settings, granularity, tmp_path):
    processor = making.byte_level()
    model = making.model(family, architecture, processor, num_hidden_layers=1, **settings)
    model = quantizing.quantized(model, weights="ternary", granularity=granularity)
    stored = []
    for numbers in ("float", "packed"):
        result = to_gguf(model, tmp_path / f"{numbers}.gguf", numbers=numbers, processor=processor)
        _, tensors = contents(result.path)
        stored.append(
            {name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for name, tensor in tensors.items()}
        )
    floats, packed = stored
    assert result.types["Q4_0"] >= 5
    assert floats.keys() == packed.keys()
    for name, values in floats.items():
        assert np.abs(values - packed[name]).max() <= HALF * np.abs(values).max(), name


REFUSED = {
    "tq2_0": (
        {"hidden_size": 64},
        {"weights": "ternary", "embedding": "float"},
        r"`encoder.layer.0.attention.self.query.weight` is 64 wide, and a block of TQ2_0 is 256 weights of a row with "
        r"one scale; export with numbers `packed`, .*, or quantize a model whose widths are multiples of 256",
    ),
    "q2_0": (
        {"hidden_size": 96},
        {"weights": "ternary"},
        "`embeddings.word_embeddings.weight` is 96 .*Q2_0 is 64",
    ),
    "packed": (
        {},
        {"weights": "ternary", "embedding": "float", "granularity": "group", "group_size": 48},
        r"has one scale for 48 weights, and a block of Q[48]_0 is 32 .*; export with numbers `float16`, or quantize a "
        r"group size that is a multiple of 32",
    ),
    "int8": ({"hidden_size": 48}, None, r"`embeddings.word_embeddings.weight` is 48 wide.*numbers `float16`"),
    "ternary": ({}, {"weights": "int8"}, r"the model has no ternary weights \(its weights are int8\)"),
}


@pytest.mark.parametrize("numbers", REFUSED)
def test_what_no_block_holds_is_refused_by_name(numbers, processor, tmp_path):
    sizes, options, message = REFUSED[numbers]
    model = bert(processor, **sizes)
    model = model if options is None else quantizing.quantized(model, **options)
    with pytest.raises(ArtifactError, match=message):
        to_gguf(model, tmp_path / "model.gguf", numbers=numbers, processor=processor)
    assert runs.listing(tmp_path) == set()


def decoder(**settings):
    return lambda processor: making.model("llama", hf.LlamaForCausalLM, processor, **settings)


def narrowed(processor):
    model = making.model("bert", hf.BertModel, processor)
    Anatomy.of(model).blocks[1].keep_neurons(range(32))
    return model


def fewer_heads(processor):
    model = bert(processor)
    Anatomy.of(model).blocks[0].keep_heads(range(2))
    return model


def changed(processor):
    model = quantizing.quantized(bert(processor), weights="int8")
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.mul_(2)
    return model


def viewed(processor):
    model = bert(processor)
    attach(Anatomy.of(model).blocks[0].query, QuantizedView("ternary"))
    return model


def with_scales_of(largest):
    def make(processor):
        model = quantizing.quantized(bert(processor), weights="ternary")
        module = model.encoder.layer[0].output.dense
        packed = packed_weights(model)["encoder.layer.0.output.dense.weight"]
        other = packed.replaced(packed.unpack(), torch.full_like(packed.scales, largest))
        module.__dict__["_slimformer_packed"] = other
        module.weight = torch.nn.Parameter(other.weight())
        return model

    return make


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
PARTLY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
IMPOSSIBLE = {
    "a head": (
        lambda processor: making.model("bert", hf.BertForTokenClassification, processor),
        "a BertForTokenClassification has a head that llama.cpp does not compute; export it as ONNX, or a model of "
        "class BertForSequenceClassification or BertModel",
    ),
    "a family": (
        lambda processor: making.model("mpnet", hf.MPNetModel, processor),
        "llama.cpp has no architecture for family `mpnet`; export as ONNX, or one of llama, qwen2",
    ),
    "an activation": (lambda processor: bert(processor, hidden_act="relu"), "the activation is `relu`, and llama.cpp"),
    "scores that are divided by the block": (
        lambda processor: making.model("gpt2", hf.GPT2LMHeadModel, processor, scale_attn_by_inverse_layer_idx=True),
        "the config has `scale_attn_by_inverse_layer_idx` `True`, and llama.cpp computes `gpt2` with `False`",
    ),
    "scores as they are": (
        lambda processor: making.model("gpt2", hf.GPT2LMHeadModel, processor, scale_attn_weights=False),
        "the config has `scale_attn_weights` `False`, and llama.cpp computes `gpt2` with `True`",
    ),
    "a decoder that looks both ways": (
        lambda processor: making.model("gemma", hf.GemmaModel, processor, use_bidirectional_attention=True),
        "the config has `use_bidirectional_attention` `True`, and llama.cpp computes `gemma` with `False`",
    ),
    "an encoder that looks back": (
        lambda processor: bert(processor, is_decoder=True),
        "the config has `is_decoder` `True`, and llama.cpp computes `bert` with `False`",
    ),
    "blocks of two widths": (narrowed, "block 1 has 32 neurons and block 0 64, and llama.cpp gives all blocks one"),
    "heads that are missing": (fewer_heads, "2 heads of 16 do not fill the 64 hidden values"),
    "stretched rotations": (decoder(rope_parameters=YARN), "rotary positions are stretched by `yarn`, and an export"),
    "parts of heads": (
        lambda processor: making.model("gemma", hf.GemmaModel, processor, rope_parameters=PARTLY),
        "`partial_rotary_factor` is 0.5, and family `gemma` rotates whole heads",
    ),
    "a window": (
        lambda processor: making.model(
            "qwen2",
            hf.Qwen2ForCausalLM,
            processor,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        ),
        "some blocks attend to a sliding window",
    ),
    "half a pair": (
        lambda processor: making.model("gpt_neox", hf.GPTNeoXForCausalLM, processor),
        "3 of the 12 values of a head are rotated, and llama.cpp rotates pairs",
    ),
    "biases": (
        lambda processor: making.model("qwen3", hf.Qwen3ForCausalLM, processor, attention_bias=True),
        "llama.cpp has no place for `model.layers.0.self_attn.q_proj.bias` in its architecture `qwen3`",
    ),
    "windows out of turn": (
        lambda processor: making.model(
            "modernbert",
            hf.ModernBertModel,
            processor,
            layer_types=["full_attention", "full_attention", "sliding_attention"],
        ),
        "llama.cpp expects one of `full_attention` at a fixed distance",
    ),
    "a weight that was changed": (changed, r"`.*output.dense.weight` was changed after it was packed"),
    "a view": (viewed, "still has a view on it"),
    "large scales": (with_scales_of(1e5), r"output.dense.weight`: a scale is 1e\+05, and those of GGUF"),
    "small scales": (with_scales_of(1e-7), "`blk.0.ffn_down.weight` as TQ2_0 would be .* too small for half precision"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_models_that_llama_does_not_compute(case, processor, tmp_path):
    make, message = IMPOSSIBLE[case]
    model = make(processor)
    with pytest.raises(ArtifactError, match=message):
        to_gguf(model, tmp_path / "model.gguf", processor=processor)
    assert runs.listing(tmp_path) == set()


def test_wrong_arguments(processor, tmp_path, monkeypatch):
    model = bert(processor)
    with pytest.raises(ConfigError, match="`numbers` is `q4`; give one of float, float16"):
        to_gguf(model, tmp_path / "model.gguf", numbers="q4", processor=processor)
    with pytest.raises(ArtifactError, match="no tokenizer that can be read, and a GGUF file holds one"):
        to_gguf(model, tmp_path / "model.gguf")
    with pytest.raises(UnknownFamilyError):
        to_gguf(hf.AlbertModel(hf.AlbertConfig(hidden_size=16, num_attention_heads=2)), tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"needs the package `gguf`.*pip install 'slimformer\[gguf\]'"):
        to_gguf(model, tmp_path / "model.gguf", processor=processor)
    assert runs.listing(tmp_path) == set()


def test_values_beyond_float16(processor, tmp_path):
    model = bert(processor)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0, 0] = 1e6
    with pytest.raises(ArtifactError, match=r"has a value beyond 65504, .*; export with numbers `bfloat16`"):
        to_gguf(model, tmp_path / "model.gguf", numbers="float16", processor=processor)
    assert to_gguf(model, tmp_path / "model.gguf", numbers="bfloat16", processor=processor).types["BF16"] == 7


def test_a_model_that_diverged(processor, tmp_path):
    model = bert(processor)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias[3] = torch.nan
    with pytest.raises(ArtifactError, match=r"`blk.0.ffn_down.bias` holds nan or infinity; nothing was written"):
        to_gguf(model, tmp_path / "model.gguf", processor=processor)
    assert runs.listing(tmp_path) == set()


def test_what_is_there_stays(processor, tmp_path):
    path, model = tmp_path / "model.gguf", bert(processor)
    path.write_text("mine")
    with pytest.raises(ArtifactError, match="exists; choose another `--out`, or add `--overwrite`"):
        to_gguf(model, path, processor=processor)
    with pytest.raises(ArtifactError, match="is no GGUF file, so nothing is replaced"):
        to_gguf(model, path, processor=processor, overwrite=True)
    assert path.read_text() == "mine"
    path.write_bytes(b"GGUF of another time")
    to_gguf(model, path, processor=processor, overwrite=True)
    first = path.read_bytes()
    to_gguf(model, path, processor=processor, overwrite=True)
    assert path.read_bytes() == first
    assert runs.listing(tmp_path) == {"model.gguf"}


@pytest.mark.parametrize("base", [500000.0, 10000.0])
def test_rotations_of_llama_3(base):
    rope = {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    sizes = {"hidden_size": 256, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    model = hf.LlamaModel(hf.LlamaConfig(**sizes, vocab_size=8, max_position_embeddings=131072, rope_parameters=rope))
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")
    plain = base ** -(torch.arange(0, 128, 2) / 128)
    factors = rope_factors(model.config, Anatomy.of(model))
    torch.testing.assert_close(plain / factors, stretched, rtol=1e-5, atol=0)
    assert factors[0] == 1
    assert factors[-1] == 32
