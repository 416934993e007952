"""Whole encoders on the native kernels against the same models in Transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import slimformer  # noqa: F401  (teaches Transformers to read packed weights)
from slimformer import Anatomy
from slimformer.artifact import pack
from slimformer.errors import DataError
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import EMBEDDINGS, HEADS, NativeEncoder
from slimformer.runtime.native import VARIABLE, is_built, kernels
from slimformer.views import QuantizedView, Rounding, attach, round_activations
from tests import zoo

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

CLASSES = {
    "SequenceClassification": hf.AutoModelForSequenceClassification,
    "TokenClassification": hf.AutoModelForTokenClassification,
    "QuestionAnswering": hf.AutoModelForQuestionAnswering,
    "": hf.AutoModel,
}
LENGTHS = (9, 1, 33, 16, 17, 2)


ROUNDING = Rounding()


def quantized(model, view="ternary", rounding=ROUNDING, small=False):
    anatomy = Anatomy.of(model)
    for block in anatomy.blocks:
        for matrix in block.matrices.values():
            attach(matrix, QuantizedView(view) if isinstance(view, str) else view())
    attach(anatomy.word_embedding, QuantizedView("ternary"))
    if anatomy.pooler is not None:
        attach(anatomy.pooler, QuantizedView("ternary"))
    if rounding is not None:
        round_activations(model, rounding)
    return pack(model, small=small) if small else pack(model)


def model_of(family, head="SequenceClassification"):
    config = zoo.CONFIGS[family]()
    config.num_labels = 2 if head == "QuestionAnswering" else 3
    if family == "electra":
        config.embedding_size = config.hidden_size
    torch.manual_seed(0)
    return zoo.enliven(CLASSES[head].from_config(config)).eval()


def save(folder, family, head="SequenceClassification", **settings):
    model = model_of(family, head)
    quantized(model, **settings)
    model.save_pretrained(folder)
    return CLASSES[head].from_pretrained(folder).eval()


def sequences(lengths=LENGTHS, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 99, length).tolist() for length in lengths]


@torch.no_grad()
def in_torch(model, ids):
    """What Transformers computes of one sequence, [rows, outputs]."""
    outputs = model(input_ids=torch.tensor([ids]))
    if "start_logits" in outputs:
        return torch.stack([outputs.start_logits[0], outputs.end_logits[0]], dim=-1).numpy()
    return outputs.logits.flatten(0, -2).numpy() if "logits" in outputs else outputs.last_hidden_state[0].numpy()


def same_bits(one, other):
    return one.shape == other.shape and (one.view(np.int32) == other.view(np.int32)).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ternary")
    save(path, "bert")
    return path


@pytest.mark.parametrize("family", EMBEDDINGS)
@pytest.mark.parametrize("head", [*HEADS, ""])
def test_the_engine_computes_what_transformers_computes(tmp_path, family, head):
    """To float precision, but for the few sequences in which a value lies so near the middle of two steps of int8 that
    the order of a sum decides which it becomes."""
    model = save(tmp_path, family, head)
    engine = NativeEncoder(tmp_path)
    apart = []
    for ids in sequences(range(1, 21)):
        expected = in_torch(model, ids)
        apart.append(np.abs(engine.run([ids]) - expected).max() / np.abs(expected).max())
    assert np.mean(np.array(apart) < 2e-5) >= 0.75
    assert max(apart) < 0.1


def test_the_smaller_layout_gives_the_same_answers(tmp_path, folder):
    save(tmp_path, "bert", small=True)
    assert any("ternary-small" in name for name in load_file(tmp_path / "packed.safetensors"))
    assert same_bits(NativeEncoder(tmp_path).run(sequences()), NativeEncoder(folder).run(sequences()))


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification"])
def test_batch_threads_and_instruction_set_change_no_bit(tmp_path, head, monkeypatch):
    save(tmp_path, "bert", head)
    asked = sequences((*LENGTHS, 40, 3, 64))
    monkeypatch.setenv(VARIABLE, "portable")
    expected = np.concatenate([NativeEncoder(tmp_path, threads=1).run([ids]) for ids in asked])
    for isa in kernels().instruction_sets():
        monkeypatch.setenv(VARIABLE, isa)
        for threads in (1, 2):
            engine = NativeEncoder(tmp_path, threads=threads)
            assert engine.instruction_set == isa
            assert same_bits(engine.run(asked), expected)
            assert same_bits(np.concatenate([engine.run([ids]) for ids in asked]), expected)


def test_types_of_tokens(tmp_path):
    model = save(tmp_path, "bert")
    ids, types = [5, 6, 7, 8], [0, 0, 1, 1]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits.numpy()
    engine = NativeEncoder(tmp_path)
    np.testing.assert_allclose(engine.run([ids], [types]), expected, atol=1e-5 * np.abs(expected).max())
    assert not same_bits(engine.run([ids], [types]), engine.run([ids]))


def test_eight_threads_that_ask_at_once_get_the_answers_they_get_alone(folder):
    engine = NativeEncoder(folder, threads=2)
    asked = [sequences((1 + number % 40, 7), seed=number) for number in range(200)]
    expected = [engine.run(each) for each in asked]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(engine.run, asked * 2))
    assert all(same_bits(one, other) for one, other in zip(answers, expected * 2, strict=True))


def test_a_forked_process_has_threads_of_its_own(folder):
    code = f"""
import os, numpy as np
from slimformer.runtime.encoder import NativeEncoder
engine = NativeEncoder({str(folder)!r}, threads=2)
before = engine.run([[5] * 40])
child = os.fork()
if child == 0:
    os._exit(0 if (engine.run([[5] * 40]) == before).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torch_and_transformers_are_not_imported(folder):
    code = f"""
import sys
from slimformer.runtime.encoder import NativeEncoder
print(NativeEncoder({str(folder)!r}).run([[5, 6, 7]]).shape)
assert not {{"torch", "transformers"}} & set(sys.modules), "imported"
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(1, 3)"


@pytest.mark.parametrize("asked", [[], [[]], [[5], []], [[99]], [[-1]], [[5] * 65], [[5, 2**40]]])
def test_tokens_are_checked(folder, asked):
    with pytest.raises((DataError, OverflowError)):
        NativeEncoder(folder).run(asked)


@pytest.mark.parametrize("types", [[[0, 2]], [[0, -1]], [[0]], []])
def test_types_are_checked(folder, types):
    with pytest.raises(DataError):
        NativeEncoder(folder).run([[5, 6]], types)


def test_types_belong_to_the_sequence_they_are_given_for(folder):
    with pytest.raises(DataError, match="of each sequence"):
        NativeEncoder(folder).run([[5, 6], [7]], [[0], [0, 0]])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rounding": None}, "does not round activations"),
        ({"rounding": Rounding(per="head")}, "does not round activations"),
        ({"rounding": Rounding(clip=2.5)}, "does not round activations"),
        ({"view": "int8"}, "the engine reads ternary"),
        ({"view": lambda: QuantizedView("ternary", granularity="group", group_size=16)}, "has scales for groups"),
    ],
)
def test_what_the_engine_does_not_run_says_so(tmp_path, settings, reason):
    save(tmp_path, "bert", **settings)
    with pytest.raises(EngineError, match=reason):
        NativeEncoder(tmp_path)


def test_other_families_and_float_models_are_refused_by_name(tmp_path):
    save(tmp_path / "mpnet", "mpnet")
    with pytest.raises(EngineError, match="does not run `mpnet`"):
        NativeEncoder(tmp_path / "mpnet")
    model_of("bert").save_pretrained(tmp_path / "float")
    with pytest.raises(EngineError, match="does not round activations"):
        NativeEncoder(tmp_path / "float")
    electra = zoo.build_headed("electra")
    quantized(electra)
    electra.save_pretrained(tmp_path / "electra")
    with pytest.raises(EngineError, match="embeddings of 24"):
        NativeEncoder(tmp_path / "electra")
    with pytest.raises(EngineError, match=r"no config\.json"):
        NativeEncoder(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 47),
        ("hidden_size", -48),
        ("hidden_size", "48"),
        ("hidden_size", None),
        ("num_attention_heads", 5),
        ("num_attention_heads", 0),
        ("intermediate_size", 63),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 4),
        ("num_hidden_layers", 1 << 40),
        ("hidden_act", "gelu_new"),
        ("hidden_act", ["gelu"]),
        ("layer_norm_eps", "small"),
        ("layer_norm_eps", -1.0),
        ("layer_norm_eps", float("nan")),
        ("model_type", []),
        ("architectures", ["BertForMaskedLM"]),
        ("architectures", 7),
    ],
)
def test_a_forged_config_is_refused(tmp_path, folder, name, value):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(EngineError):
        NativeEncoder(tmp_path)


FORGERIES = {
    "missing": lambda tensors, name: tensors.pop(name),
    "shorter": lambda tensors, name: tensors.update({name: tensors[name][:-1].clone()}),
    "flat": lambda tensors, name: tensors.update({name: tensors[name].flatten().clone()}),
    "narrow": lambda tensors, name: tensors.update({name: tensors[name][..., :-1].clone()}),
    "integers": lambda tensors, name: tensors.update({name: tensors[name].to(torch.int32)}),
    "bfloat16": lambda tensors, name: tensors.update({name: tensors[name].to(torch.bfloat16)}),
    "no numbers": lambda tensors, name: tensors.update({name: tensors[name].float() * float("nan")}),
}


@pytest.mark.parametrize("change", FORGERIES)
@pytest.mark.parametrize(
    "name",
    [
        "bert.embeddings.word_embeddings.weight.ternary",
        "bert.embeddings.word_embeddings.weight.ternary_scales",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.1.attention.self.key.weight.ternary",
        "bert.encoder.layer.1.attention.self.key.weight.ternary_scales",
        "bert.encoder.layer.2.output.dense.bias",
        "bert.encoder.layer.0.output.LayerNorm.weight",
        "bert.pooler.dense.weight.ternary",
        "classifier.weight",
        "classifier.bias",
    ],
)
def test_forged_tensors_are_refused_or_harmless(tmp_path, folder, name, change):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "packed.safetensors")
    FORGERIES[change](tensors, name)
    save_file(tensors, tmp_path / "packed.safetensors")
    try:
        answer = NativeEncoder(tmp_path).run([[5, 6, 7]])
    except (EngineError, DataError):
        return
    # Fewer words or positions are a model of its own, and what has one axis is flat as it is.
    assert np.isfinite(answer).all()
    embeddings = change == "shorter" and name.endswith("_embeddings.weight")
    unbiased = change == "missing" and name.endswith("dense.bias")
    flat = change == "flat" and name.endswith((".bias", "LayerNorm.weight"))
    assert embeddings or unbiased or flat


def test_codes_that_are_none_are_refused(tmp_path, folder):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "packed.safetensors")
    name = "bert.encoder.layer.0.intermediate.dense.weight.ternary"
    tensors[name] = torch.zeros_like(tensors[name])  # digits of -2
    save_file(tensors, tmp_path / "packed.safetensors")
    with pytest.raises(EngineError, match="not ternary"):
        NativeEncoder(tmp_path)


def test_a_truncated_file_is_refused(tmp_path, folder):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    content = (folder / "packed.safetensors").read_bytes()
    (tmp_path / "packed.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(EngineError, match="cannot be read"):
        NativeEncoder(tmp_path)
