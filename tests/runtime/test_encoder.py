"""Whole encoders on the native kernels against the same models in Transformers."""

from __future__ import annotations

import ctypes
import json
import platform
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
from slimformer.anatomy.tied import tied_modules
from slimformer.artifact import pack
from slimformer.errors import ConfigError, DataError
from slimformer.runtime.architecture import ARCHITECTURES, HEADS
from slimformer.runtime.building import distance_bucket
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.mapping import map_tensors
from slimformer.runtime.native import VARIABLE, is_built, kernels
from slimformer.views import QuantizedView, Rounding, attach, round_activations
from tests import zoo

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

CLASSES = {
    "ForSequenceClassification": hf.AutoModelForSequenceClassification,
    "ForTokenClassification": hf.AutoModelForTokenClassification,
    "ForQuestionAnswering": hf.AutoModelForQuestionAnswering,
    "ForImageClassification": hf.AutoModelForImageClassification,
    "Model": hf.AutoModel,
}
#: Every family with every head that the engine has for it.
PAIRS = [(family, head) for head, families in HEADS.items() for family in families]
LENGTHS = (9, 1, 33, 16, 17, 2)


ROUNDING = Rounding()


def quantized(model, view="ternary", rounding=ROUNDING, small=False):
    anatomy = Anatomy.of(model)
    for block in anatomy.blocks:
        for matrix in block.matrices.values():
            attach(matrix, QuantizedView(view) if isinstance(view, str) else view())
    if anatomy.word_embedding is not None:
        tied, words = tied_modules(anatomy), QuantizedView("ternary")
        for module in (anatomy.word_embedding, *tied):
            attach(module, words)
    if anatomy.pooler is not None:
        attach(anatomy.pooler, QuantizedView("ternary"))
    if rounding is not None:
        round_activations(model, rounding)
    return pack(model, small=small) if small else pack(model)


def model_of(family, head="ForSequenceClassification"):
    config = zoo.CONFIGS[family]()
    config.num_labels = 2 if head == "ForQuestionAnswering" else 3
    torch.manual_seed(0)
    made = hf.DeiTForImageClassification(config) if head.startswith("ForImage") and family == "deit" else None
    return zoo.enliven(made or CLASSES[head].from_config(config)).eval()


def save(folder, family, head="ForSequenceClassification", *, floats=False, **settings):
    model = model_of(family, head)
    if not floats:
        quantized(model, **settings)
    model.save_pretrained(folder)
    return CLASSES[head].from_pretrained(folder).eval()


def sequences(lengths=LENGTHS, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 99, length).tolist() for length in lengths]


def images(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 3, 16, 16)).astype(np.float32)


@torch.no_grad()
def in_torch(model, given):
    """What Transformers computes of one sequence or image, [rows, outputs]."""
    image = isinstance(given, np.ndarray)
    outputs = model(**({"pixel_values": torch.tensor(given[None])} if image else {"input_ids": torch.tensor([given])}))
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


def differences(folder, family, model):
    """By how much the engine is apart from Transformers, for one sequence or image after the other."""
    engine = NativeEncoder(folder)
    asked = images(20) if family in zoo.IMAGES else sequences(range(1, 61, 3))
    apart = []
    for each in asked:
        expected = in_torch(model, each)
        answer = engine.run_images(each[None]) if family in zoo.IMAGES else engine.run([each])
        apart.append(np.abs(answer - expected).max() / np.abs(expected).max())
    return np.array(apart)


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_the_engine_computes_what_transformers_computes(tmp_path, family, head):
    """To float precision, but for the sequences in which a value lies so near the middle of two steps of int8 that the
    order of a sum decides which it becomes."""
    apart = differences(tmp_path, family, save(tmp_path, family, head))
    assert np.mean(apart < 2e-5) >= 0.5
    assert apart.max() < 0.1


@pytest.mark.parametrize(("family", "head"), PAIRS)
def test_models_in_floats_are_computed_in_floats(tmp_path, family, head):
    assert differences(tmp_path, family, save(tmp_path, family, head, floats=True)).max() < 2e-5


@pytest.mark.parametrize("family", sorted(zoo.CONFIGS.keys() & ARCHITECTURES.keys()))
def test_bfloat16_is_computed_as_the_floats_it_stands_for(tmp_path, family):
    model = model_of(family, "Model").bfloat16()
    model.save_pretrained(tmp_path / "halves")
    model.float().save_pretrained(tmp_path / "floats")
    halves, floats = NativeEncoder(tmp_path / "halves"), NativeEncoder(tmp_path / "floats")
    if family in zoo.IMAGES:
        assert same_bits(halves.run_images(images(3)), floats.run_images(images(3)))
    else:
        assert same_bits(halves.run(sequences()), floats.run(sequences()))


def test_bfloat16_beside_floats_is_read(tmp_path):
    model = save(tmp_path, "bert", floats=True)
    tensors = load_file(tmp_path / "model.safetensors")
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items() if "key" in name or "dense.bias" in name}
    save_file(tensors | halves, tmp_path / "model.safetensors", {"format": "pt"})
    model.load_state_dict({name: tensor.float() for name, tensor in halves.items()}, strict=False)
    assert differences(tmp_path, "bert", model).max() < 2e-5


def test_a_packed_table_of_words_is_not_copied(tmp_path, folder):
    """Its file is mapped, and what is looked up in the file is what the encoder reads from then on."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "packed.safetensors"
    engine, before = NativeEncoder(tmp_path), NativeEncoder(folder).run(sequences())
    assert same_bits(engine.run(sequences()), before)
    content, words = path.read_bytes(), map_tensors(path)["bert.embeddings.word_embeddings.weight.ternary"].tobytes()
    assert content.count(words) == 1
    with path.open("r+b") as opened:
        opened.seek(content.index(words))
        opened.write(words[::-1])
    assert not same_bits(engine.run(sequences()), before)


def test_all_families_have_a_head_and_a_test():
    assert {family for family, _ in PAIRS} == set(ARCHITECTURES) <= set(zoo.FAMILIES)


def test_distances_have_the_buckets_of_mpnet():
    distances = torch.arange(-600, 601)
    expected = hf.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(distances)
    assert [distance_bucket(each) for each in distances.tolist()] == expected.tolist()


@pytest.mark.parametrize("view", ["binary", "int2", "int3", "int4", "int8", "groups"])
def test_every_format_is_computed(tmp_path, view):
    grouped = view == "groups"
    made = (lambda: QuantizedView("int4", granularity="group", group_size=16)) if grouped else view
    apart = differences(tmp_path, "bert", save(tmp_path, "bert", view=made))
    assert np.mean(apart < 2e-5) >= 0.5  # the others have a value in the middle of two steps, as above


def test_the_smaller_layout_gives_the_same_answers(tmp_path, folder):
    save(tmp_path, "bert", small=True)
    assert any("ternary-small" in name for name in load_file(tmp_path / "packed.safetensors"))
    assert same_bits(NativeEncoder(tmp_path).run(sequences()), NativeEncoder(folder).run(sequences()))


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("family", [each for each in ARCHITECTURES if each not in zoo.IMAGES])
def test_batch_threads_and_instruction_set_change_no_bit(tmp_path, family, floats, monkeypatch):
    save(tmp_path, family, "ForTokenClassification", floats=floats)
    asked = sequences((*LENGTHS, 40, 3, 62))
    monkeypatch.setenv(VARIABLE, "portable")
    expected = np.concatenate([NativeEncoder(tmp_path, threads=1).run([ids]) for ids in asked])
    for isa in kernels().instruction_sets():
        monkeypatch.setenv(VARIABLE, isa)
        for threads in (1, 2):
            engine = NativeEncoder(tmp_path, threads=threads)
            assert engine.instruction_set == isa
            assert same_bits(engine.run(asked), expected)
            assert same_bits(np.concatenate([engine.run([ids]) for ids in asked]), expected)


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("family", ["vit", "deit"])
def test_images_alone_and_in_a_batch_have_the_same_bits(tmp_path, family, floats, monkeypatch):
    save(tmp_path, family, "ForImageClassification", floats=floats)
    asked = images(7)
    monkeypatch.setenv(VARIABLE, "portable")
    engine = NativeEncoder(tmp_path, threads=1)
    expected = np.concatenate([engine.run_images(each[None]) for each in asked])
    for isa in kernels().instruction_sets():
        monkeypatch.setenv(VARIABLE, isa)
        for threads in (1, 2):
            assert same_bits(NativeEncoder(tmp_path, threads=threads).run_images(asked), expected)


@pytest.mark.parametrize(
    "shape", [(1, 3, 16, 12), (1, 3, 8, 32), (1, 1, 16, 16), (1, 3, 15, 16), (3, 16, 16), (0, 3, 16, 16)]
)
def test_images_of_another_size_are_refused(tmp_path, shape):
    save(tmp_path, "vit", "ForImageClassification")
    with pytest.raises(DataError):
        NativeEncoder(tmp_path).run_images(np.zeros(shape, np.float32))


def test_texts_and_images_are_told_apart(tmp_path, folder):
    save(tmp_path, "vit", "ForImageClassification")
    with pytest.raises(DataError, match="model of images"):
        NativeEncoder(tmp_path).run([[5, 6]])
    with pytest.raises(DataError, match="model of texts"):
        NativeEncoder(folder).run_images(images(1))
    for pixels in ([[1]], np.array([["a"]]), None):
        with pytest.raises(DataError):
            NativeEncoder(tmp_path).run_images(pixels)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embeddings.cls_token", (0, 1, 48)),
        ("embeddings.distillation_token", (1, 1, 24)),
        ("embeddings.patch_embeddings.projection.weight", (0, 3, 4, 4)),
        ("embeddings.position_embeddings", (1, 18, 24)),
        ("embeddings.position_embeddings", (0, 18, 48)),
    ],
)
def test_forged_parts_of_images_are_refused(tmp_path, name, shape):
    save(tmp_path, "deit", "ForImageClassification", floats=True)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, f"deit.{name}": torch.zeros(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(EngineError):
        NativeEncoder(tmp_path)


def test_the_hosts_way_of_rounding_changes_no_bit(folder):
    """A host that takes the smallest numbers for 0, as PyTorch can be told to."""
    engine = NativeEncoder(folder, threads=2)
    expected = engine.run(sequences())
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    try:
        assert same_bits(engine.run(sequences()), expected)
        assert float(torch.tensor(1e-40) * 1) == 0  # the host has its own way again
    finally:
        torch.set_flush_denormal(False)
    upwards, nearest = 0x800, 0  # of x86
    if platform.machine() in ("x86_64", "AMD64") and ctypes.CDLL(None).fesetround(upwards) == 0:
        try:
            rounded_upwards = engine.run(sequences())
        finally:
            ctypes.CDLL(None).fesetround(nearest)
        assert same_bits(rounded_upwards, expected)


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
from slimformer.runtime.mapping import map_tensors
engine = NativeEncoder({str(folder)!r}, threads=2)
before = engine.run([[5] * 40])
child = os.fork()
if child == 0:
    os._exit(0 if (engine.run([[5] * 40]) == before).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_daemon_threads_inside_the_engine_let_the_process_end(folder):
    code = f"""
import threading
from slimformer.runtime.encoder import NativeEncoder
engine = NativeEncoder({str(folder)!r}, threads=2)
running = threading.Barrier(4)

def ask():
    engine.run([[5] * 40])
    running.wait()
    while True:
        engine.run([[5] * 40] * 20)

for _ in range(3):
    threading.Thread(target=ask, daemon=True).start()
running.wait()
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_more_tokens_before_the_patches_than_a_sequence_has_are_refused():
    native = kernels()
    parts = {"positions": None, "types": None, "norm": None, "projection": native.Matrix(4, 4), "position_offset": 0}
    shape = {"hidden": 4, "heads": 1, "activation": "gelu", "pre_norm": True, "gated": False, "images": True}
    native.Encoder(**shape, **parts, words=np.ones((2, 4), np.float32), longest=2)
    with pytest.raises(native.InputError, match="before the patches"):
        native.Encoder(**shape, **parts, words=np.ones((3, 4), np.float32), longest=2)


def test_torch_and_transformers_are_not_imported(folder):
    code = f"""
import sys
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.mapping import map_tensors
print(NativeEncoder({str(folder)!r}).run([[5, 6, 7]]).shape)
assert not {{"torch", "transformers"}} & set(sys.modules), "imported"
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(1, 3)"


@pytest.mark.parametrize(
    "asked",
    [
        *([], [[]], [[5], []], [[99]], [[-1]], [[5] * 65], [[5, 2**40]], [[5, 2**70]], [[5.9, 6.9]]),
        *([[[5]]], [["a"]], None, 5, [None], [np.array([5, 2**32 + 5])]),
    ],
)
def test_tokens_are_checked(folder, asked):
    with pytest.raises(DataError):
        NativeEncoder(folder).run(asked)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", 2**40])
def test_threads_are_checked(folder, threads):
    with pytest.raises(ConfigError, match="`threads` is"):
        NativeEncoder(folder, threads=threads)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "mpnet"])
def test_padding_that_is_written_in_a_text_takes_no_position(tmp_path, family):
    model = save(tmp_path, family, "ForTokenClassification", floats=True)
    for ids in ([0, 5, 1, 6, 2], [1, 1, 5], [5, 1]):
        expected = in_torch(model, ids)
        np.testing.assert_allclose(NativeEncoder(tmp_path).run([ids]), expected, atol=2e-5 * np.abs(expected).max())


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
        ({"view": lambda: QuantizedView("ternary", granularity="group", group_size=24)}, "groups of 24"),
    ],
)
def test_what_the_engine_does_not_run_says_so(tmp_path, settings, reason):
    save(tmp_path, "bert", **settings)
    with pytest.raises(EngineError, match=reason):
        NativeEncoder(tmp_path)


def test_other_families_and_heads_are_refused_by_name(tmp_path):
    t5 = zoo.build_headed("t5")
    t5.save_pretrained(tmp_path / "t5")
    with pytest.raises(EngineError, match="does not run `t5`"):
        NativeEncoder(tmp_path / "t5")
    zoo.build_headed("xlm-roberta").save_pretrained(tmp_path / "words")
    with pytest.raises(EngineError, match="no head of `XLMRobertaForMaskedLM`"):
        NativeEncoder(tmp_path / "words")
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
        ("architectures", ["BertLMHeadModel"]),
        ("architectures", ["RobertaForSequenceClassification"]),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("position_embedding_type", "relative_key"),
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
    # Fewer words or positions are a model of its own, what has one axis is flat as it is, and bfloat16 are floats.
    assert np.isfinite(answer).all()
    embeddings = change == "shorter" and name.endswith("_embeddings.weight")
    flat = change == "flat" and name.endswith((".bias", "LayerNorm.weight"))
    halves = change == "bfloat16" and not name.endswith(".ternary")
    assert embeddings or flat or halves


def test_codes_that_are_none_are_refused(tmp_path, folder):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "packed.safetensors")
    name = "bert.encoder.layer.0.intermediate.dense.weight.ternary"
    tensors[name] = torch.zeros_like(tensors[name])  # digits of -2
    save_file(tensors, tmp_path / "packed.safetensors")
    with pytest.raises(EngineError, match="a code of -2"):
        NativeEncoder(tmp_path)


def test_a_truncated_file_is_refused(tmp_path, folder):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    content = (folder / "packed.safetensors").read_bytes()
    (tmp_path / "packed.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(EngineError, match="cannot be read"):
        NativeEncoder(tmp_path)
