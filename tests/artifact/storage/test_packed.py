"""Packed models on disk: every family, every layout, through Transformers and through artifacts, bit for bit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import slimformer
from slimformer.artifact.loading import load_model
from slimformer.artifact.storage.packed import keep_quantized
from slimformer.artifact.storage.quantizer import adopt
from slimformer.cli.inspect import inspect_model
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.formats import find_format
from slimformer.methods.quantize.config import NumberOptions
from slimformer.methods.quantize.student import quantize_numbers
from slimformer.registry import FORMATS
from slimformer.views import bake, packed_weights, quantized_weights, rounding_of
from slimformer.views.rounding import in_floats
from tests import zoo
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer

#: Those of slimformer's own formats; a test of the docs may add others to this process.
LAYOUTS = {layout.name for name in FORMATS for layout in find_format(name).layouts}
WAYS = {
    "ternary": {},
    "ternary small": {"packing": "small"},
    "ternary by matrix": {"granularity": "matrix"},
    "ternary by group": {"granularity": "group", "group_size": 7},
    "binary": {"weights": "binary"},
    "two bits": {"weights": "2"},
    "three bits": {"weights": "3"},
    "three bits by group": {"weights": "int3", "granularity": "group", "group_size": 7},
    "four bits and a ternary table": {"weights": "4", "embedding": "ternary"},
    "eight bits, float activations": {"weights": "8", "activations": "none"},
    "float weights": {"weights": "float"},
}


def quantized(model, **options):
    """A model as `quantize` leaves it, without the training."""
    settings = NumberOptions(**options)
    quantize_numbers(model, settings)
    weights = quantized_weights(model)
    bake(model)
    keep_quantized(model, weights, small=settings.packing == "small")
    adopt(model)
    return model.eval()


def answers(model, inputs):
    """What a model computes with floats; `tests/operators` compares that with operators."""
    torch.manual_seed(0)  # masked autoencoders draw what they hide
    with torch.no_grad(), in_floats(model):
        return [value for value in model(**inputs).values() if torch.is_tensor(value)]


def assert_same(one, other, inputs):
    pairs = list(zip(answers(one, inputs), answers(other, inputs), strict=True))
    assert pairs
    assert all(torch.equal(before, after) for before, after in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_is_saved_packed_and_loaded_bit_for_bit(family, tmp_path):
    build = zoo.build if family in ("mpnet", "qwen2") else zoo.build_headed  # their heads want other inputs
    model = quantized(build(family))
    inputs = zoo.inputs_for(family)
    assert packed_weights(model)
    slimformer.save(tmp_path / "out", model, step=STEP)
    loaded = slimformer.load(tmp_path / "out").model
    assert_same(model, loaded, inputs)
    assert packed_weights(loaded).keys() == packed_weights(model).keys()
    assert rounding_of(loaded) == rounding_of(model)
    slimformer.verify(tmp_path / "out")


@pytest.mark.parametrize("way", WAYS)
def test_every_layout_is_read_by_transformers_and_written_again(way, tmp_path):
    model = quantized(tiny_bert(), **WAYS[way])
    inputs = zoo.inputs_for("bert") | {"input_ids": torch.randint(0, 40, (2, 9)), "attention_mask": torch.ones(2, 9)}
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    model.save_pretrained(tmp_path / "one")
    again = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "one")
    assert_same(model, again, inputs)
    again.save_pretrained(tmp_path / "two")
    one, two = (load_file(tmp_path / name / "packed.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    assert (tmp_path / "one" / "config.json").read_text() == (tmp_path / "two" / "config.json").read_text()


def test_the_bare_encoder_is_read_from_a_packed_classifier(tmp_path):
    model = quantized(tiny_bert())
    model.save_pretrained(tmp_path / "out")
    bare = hf.AutoModel.from_pretrained(tmp_path / "out")
    ids = torch.randint(0, 40, (2, 9))
    with torch.no_grad(), in_floats(bare):
        assert torch.equal(bare(ids).last_hidden_state, model.bert(ids).last_hidden_state)


def test_a_pipeline_answers_as_the_model_in_memory(tmp_path):
    model = quantized(tiny_bert())
    slimformer.save(tmp_path / "out", model, processor=tiny_tokenizer(), step=STEP)
    asked = hf.pipeline("text-classification", model=str(tmp_path / "out"), device="cpu")("a fine film", top_k=None)
    with torch.no_grad():
        expected = model(**tiny_tokenizer()("a fine film", return_tensors="pt")).logits.softmax(-1)[0]
    for answer in asked:
        assert answer["score"] == pytest.approx(float(expected[model.config.label2id[answer["label"]]]), abs=1e-6)


@pytest.mark.slow
def test_importing_slimformer_is_enough_whichever_comes_first(tmp_path):
    quantized(tiny_bert()).save_pretrained(tmp_path / "out")
    load = f"m = transformers.AutoModelForSequenceClassification.from_pretrained({str(tmp_path / 'out')!r})\n"
    show = "print(len(m.bert.encoder.layer[0].output.dense.weight[0].unique()))"
    for first in ("import slimformer, transformers\n", "import transformers.quantizers.auto\nimport slimformer\n"):
        done = subprocess.run([sys.executable, "-c", first + load + show], capture_output=True, text=True, check=True)
        assert int(done.stdout) <= 3


def test_a_file_holds_codes_and_scales_and_small_floats(tmp_path):
    model = quantized(tiny_bert())
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "packed.safetensors")
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    assert name not in stored
    assert stored[f"{name}.ternary"].dtype == torch.uint8
    assert stored[f"{name}.ternary"].shape == (24, 4)
    assert stored[f"{name}.ternary_scales"].dtype == torch.float32
    assert stored[f"{name}.ternary_scales"].shape == (24, 1)
    assert stored["bert.embeddings.position_embeddings.weight"].dtype == torch.float16
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["dtype"] == "float32"
    assert config["quantization_config"] == {
        "quant_method": "slimformer",
        "version": 2,
        "layouts": ["ternary"],
        "group_size": None,
        "activations": {"bits": 8, "per": "token", "clip": None, "symmetric": True},
    }


def test_three_bits_are_three_bits_on_disk(tmp_path):
    quantized(tiny_bert(), weights="3").save_pretrained(tmp_path)
    stored = load_file(tmp_path / "packed.safetensors")
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    assert stored[f"{name}.int3"].shape == (24, 6)  # 16 codes of 3 bits
    assert stored[f"{name}.int3_scales"].shape == (24, 1)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["layouts"] == ["int3"]
    slimformer.save(tmp_path / "out", quantized(tiny_bert(), weights="3"), step=STEP)
    assert slimformer.artifact.read_manifest(tmp_path / "out").model.packed == ["int3"]
    assert slimformer.verify(tmp_path / "out")


def test_a_float_beyond_half_precision_stays_whole(tmp_path):
    model = tiny_bert()
    with torch.no_grad():
        model.classifier.bias[0] = 1e6
    model = quantized(model)
    assert model.classifier.bias[0] == 1e6
    model.save_pretrained(tmp_path)
    assert load_file(tmp_path / "packed.safetensors")["classifier.bias"].dtype == torch.float32


#: Shape → how much smaller its file has to be than that of float32.
SHAPES = {
    "base": ({}, 14.9),
    "large": (
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        15.4,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packing", ["fast", "small"])
def test_a_ternary_bert_is_a_fifteenth_on_disk(shape, packing, tmp_path):
    sizes, least = SHAPES[shape]
    torch.manual_seed(0)
    model = hf.BertModel(hf.BertConfig(**sizes))
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    quantized(model, packing=packing).save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    assert whole / file.stat().st_size >= (least if packing == "fast" else 1.15 * least)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "out"
    slimformer.save(folder, quantized(tiny_bert()), processor=tiny_tokenizer(), step=STEP)
    return folder


def cut(rows, columns):
    """Leave so much of the codes of a weight."""
    return lambda tensors: tensors.update({f"{NAME}.ternary": tensors[f"{NAME}.ternary"][:rows, :columns].clone()})


def rewrite(folder, change):
    tensors = load_file(folder / "packed.safetensors")
    change(tensors)
    save_file(tensors, folder / "packed.safetensors", metadata={"format": "pt"})


NAME = "bert.encoder.layer.0.intermediate.dense.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{NAME}.ternary_scales"), "codes or scales, not both"),
        (lambda tensors: tensors.pop(f"{NAME}.ternary"), "codes or scales, not both"),
        (
            lambda tensors: tensors.update({f"{NAME}.ternary": tensors[f"{NAME}.ternary"][:, :3].clone()}),
            "fill 4 bytes",
        ),
        (lambda tensors: tensors[f"{NAME}.ternary"].fill_(0), "hold no codes"),
        (cut(5, None), "shape"),
        (lambda tensors: tensors.pop("classifier.bias"), "is missing"),
    ],
    ids=["no scales", "no codes", "narrow", "no code", "short", "no bias"],
)
def test_a_damaged_file_is_refused(packed, tmp_path, change, message):
    folder = shutil.copytree(packed, tmp_path / "copy")
    rewrite(folder, change)
    with pytest.raises(ArtifactError, match=message):
        load_model(folder)
    with pytest.raises(ArtifactError, match=r"packed\.safetensors"):
        slimformer.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version 3"),
        ({"layouts": ["ternery"]}, "ternery"),
        ({"zeal": 1}, "zeal"),
        ({"layouts": []}, "is missing"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(packed, tmp_path, change, message):
    folder = shutil.copytree(packed, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"].update(change)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match=message):
        load_model(folder)


def test_a_weight_that_changed_since_is_not_saved_as_its_codes(tmp_path):
    model = quantized(tiny_bert())
    with torch.no_grad():
        model.bert.pooler.dense.weight[0, 0] += 1
    with pytest.raises(ArtifactError, match=r"`bert\.pooler\.dense\.weight` was changed after it was packed"):
        slimformer.save(tmp_path / "out", model, step=STEP)
    assert not list(tmp_path.iterdir())


def test_packed_weights_are_not_trained_on(packed, tmp_path):
    from tests import corpus

    data = corpus.data_folder(tmp_path / "data")
    with pytest.raises(CheckpointError, match="holds quantized weights, which are not trained on"):
        slimformer.finetune(model=packed, task="classification", data=data, out=tmp_path / "out")


def test_the_card_tells_how_to_load(packed):
    card = (packed / "README.md").read_text()
    assert "import slimformer  # teaches" in card
    assert "| Packed as | ternary |" in card
    assert slimformer.artifact.read_manifest(packed).model.packed == ["ternary"]


def test_a_fingerprint_is_that_of_the_folder(packed):
    assert slimformer.artifact.fingerprint(slimformer.load(packed).model) == slimformer.artifact.fingerprint(packed)


def test_every_layout_has_a_way():
    used = set()
    for options in WAYS.values():
        used |= {weight.layout.name for weight in packed_weights(quantized(tiny_bert(), **options)).values()}
    assert used == LAYOUTS


def test_on_another_type_the_weight_is_that_of_float32_rounded(packed):
    model = hf.AutoModelForSequenceClassification.from_pretrained(packed, dtype=torch.bfloat16)
    weight = model.bert.pooler.dense.weight
    assert weight.dtype == torch.bfloat16
    exact = slimformer.load(packed).model.bert.pooler.dense.weight
    assert torch.equal(weight, exact.to(torch.bfloat16))


def test_files_hold_no_more_than_weights(packed):
    with safe_open(packed / "packed.safetensors", "pt") as file:
        assert all("slimformer" not in name for name in file.keys())  # noqa: SIM118 (no mapping)


def test_inspect_tells_how_it_is_packed(packed, capsys):
    inspect_model(str(packed))
    assert "float32 in memory, ternary in the file" in " ".join(capsys.readouterr().out.split())
    inspect_model(str(packed), as_json=True)
    assert json.loads(capsys.readouterr().out)["packed"] == ["ternary"]
