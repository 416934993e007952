"""Checkpoints whose config, weights, tokenizer or settings are broken are refused in one line by whoever opens them."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from slimformer.errors import CheckpointError
from slimformer.models.settings import check_labels, check_settings
from tests import runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = "a good film"
WEIGHT = "bert.encoder.layer.0.output.dense.weight"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, a decoder and a classifier of images, which no test changes."""
    folder = tmp_path_factory.mktemp("shelf")
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    runs.headed(folder / "classifier", hf.BertForSequenceClassification, **labels)
    runs.decoder(folder / "decoder")
    runs.viewer(folder / "images")
    torch.manual_seed(2)
    config = hf.ViTConfig(**runs.SMALL, image_size=28, patch_size=7, num_labels=2)
    hf.ViTForImageClassification(config).save_pretrained(folder / "images")
    return folder


def copied(shelf: Path, name: str, tmp_path: Path) -> Path:
    return shutil.copytree(shelf / name, tmp_path / "model")


def edit(folder: Path, file: str, **values: Any) -> None:
    content = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps({**content, **values}))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_attention_heads", -4, "`num_attention_heads` `-4`, and 1 is the least"),
        ("hidden_size", 0, "`hidden_size` `0`, and 1 is the least"),
        ("num_hidden_layers", -1, "`num_hidden_layers` `-1`, and 0 is the least"),
        ("layer_norm_eps", float("inf"), "`layer_norm_eps` `inf`, which is no finite number"),
        ("dtype", "int8", "`dtype` `int8`, and weights are of one of the types float32"),
        ("dtype", {"a": 1}, "`dtype` `{'a': 1}`, and weights are of one of"),
        ("model_type", ["bert"], "`model_type` `['bert']`, which is no name"),
        ("auto_map", "x", "`auto_map` `x`, which is no table"),
        ("id2label", "x", "`id2label` `x`, which is no table"),
        ("id2label", {"0": "a", "5": "b"}, "names the outputs `[0, 5]`"),
        ("id2label", {"0": "a", "1": "a"}, "calls two outputs `a`"),
        ("num_labels", 1.5, "`num_labels` `1.5`, which is no whole number"),
        ("quantization_config", {"quant_method": "x"}, "whose `quant_method` is none that Transformers knows"),
        ("quantization_config", [], "whose `quant_method` is none that Transformers knows"),
        ("architectures", ["LlamaForCausalLM"], "`model_type` is `bert`, and the class is for a `llama`"),
        ("add_cross_attention", True, "BertLayer should be used as a decoder model"),
        ("pad_token_id", "x", "`pad_token_id` is `x`, which is no int or null"),
        ("num_labels", 7, "(there is one of shape [2] instead of [7])"),
        ("problem_type", "regression", "of 2 outputs and problem type `regression`"),
    ],
)
def test_a_setting_that_no_model_has_is_refused_by_its_name(key, value, words, shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    edit(folder, "config.json", **{key: value})
    runs.run("predict", folder, TEXT).refused(words)


def test_very_many_labels_are_checked_in_no_time():
    config = hf.BertConfig(id2label={number: f"label {number}" for number in range(100_000)})
    began = time.perf_counter()
    check_labels(config, "m")
    assert time.perf_counter() - began < 5  # each against each takes minutes


@pytest.mark.parametrize("name", ["__class__", "BertTokenizer", "pipeline", "PreTrainedModel"])
def test_nothing_but_models_is_built(name, shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    edit(folder, "config.json", architectures=[name])
    assert "BertModel" in runs.run("inspect", folder).out


@pytest.mark.parametrize("command", ["inspect", "bench"])
def test_sizes_below_one_are_refused_without_weights_too(command, shelf, tmp_path):
    folder = copied(shelf, "images", tmp_path)
    edit(folder, "config.json", image_size=[28, 0])
    runs.run(command, folder).refused("`image_size` `[28, 0]`, and 1 is the least")


def test_settings_of_every_family_that_stand_for_none_are_kept():
    check_settings({"max_relative_positions": -1, "position_buckets": -1, "n_inner": None, "type_vocab_size": 0}, "m")
    check_settings({"head_dim": None, "id2label": None, "dtype": None, "num_hidden_layers": 0}, "m")


@pytest.mark.parametrize(
    ("dtype", "said"),
    [(torch.int8, "I8"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.int64, "I64")],
)
def test_weights_that_are_no_floats_are_not_cast(dtype, said, shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights[WEIGHT] = weights[WEIGHT].to(dtype)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    runs.run("predict", folder, TEXT).refused(f"`{WEIGHT}`", f"is of type `{said}`")


def test_numbers_of_positions_may_be_whole(shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    before = runs.run("predict", shelf / "classifier", TEXT).out
    assert runs.run("predict", folder, TEXT).out == before


def test_a_head_on_a_pooler_that_is_missing_does_not_answer(shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    runs.run("predict", folder, TEXT).refused("has no trained head", "bert.pooler.dense.bias")
    assert runs.run("predict", folder, TEXT, "--task", "retrieval").code == 0


def test_an_answer_that_is_no_number_is_none(shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights[WEIGHT] = torch.full_like(weights[WEIGHT], 3e38)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    done = runs.run("predict", folder, TEXT)
    assert (done.code, done.out) == (1, "")
    assert "the model gives nan in its `logits`" in done.err


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("tokenizer_config.json", {"model_max_length": "x"}, "`model_max_length` `x`, which is no number of tokens"),
        ("tokenizer_config.json", {"model_max_length": 0}, "`model_max_length` `0`, which is no number of tokens"),
        ("tokenizer_config.json", {"model_input_names": 5}, "`model_input_names` `5`, which is no list of names"),
        ("tokenizer_config.json", {"tokenizer_class": "BertModel"}, "is a `BertModel` by its files"),
    ],
)
def test_settings_of_a_tokenizer_are_checked(file, values, words, shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    edit(folder, file, **values)
    runs.run("predict", folder, TEXT).refused(words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["model"].update(vocab={}), "does not read a text"),
        (lambda content: content["post_processor"]["special_tokens"]["[CLS]"].update(ids=[99]), "up to number 99"),
    ],
)
def test_a_tokenizer_is_tried_before_it_is_used(change: Callable[[Any], object], words, shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    runs.run("predict", folder, TEXT).refused(words)


@pytest.mark.parametrize("content", ["", "null", "[]"])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_the_broken_file_of_a_tokenizer_is_named(file, content, shelf, tmp_path):
    folder = copied(shelf, "classifier", tmp_path)
    (folder / file).write_text(content)
    runs.run("predict", folder, TEXT).refused(f"{file}`")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": {"height": 8, "width": 8}}, "makes images of `8 x 8` pixels, and the model takes 28 x 28"),
        ({"size": {"height": 0, "width": 0}}, "`(0, 0, 0, 0)` pixels a side"),
        ({"size": {"height": 60000, "width": 60000}}, "pixels a side"),
        ({"image_std": [0, 0, 0]}, "its `image_std` is `(0, 0, 0)`"),
        ({"image_mean": "x"}, "describes no way to read an image"),
        ({"rescale_factor": 1e300}, "its `rescale_factor` is"),
        ({"resample": 99}, "its `resample` is `99`"),
    ],
)
def test_an_image_processor_that_reads_no_image_is_refused(values, words, shelf, tmp_path):
    from PIL import Image

    folder = copied(shelf, "images", tmp_path)
    Image.new("RGB", (30, 30)).save(tmp_path / "image.png")
    edit(folder, "preprocessor_config.json", **values)
    runs.run("predict", folder, tmp_path / "image.png").refused(words)


@pytest.mark.parametrize(
    "values", [{"num_beams": 4}, {"num_beams": 0}, {"repetition_penalty": 9.0}, {"stop_strings": ["a"]}]
)
def test_text_goes_on_with_the_likeliest_token_whatever_a_model_says_of_generating(values, shelf, tmp_path):
    folder = copied(shelf, "decoder", tmp_path)
    before = runs.run("predict", folder, TEXT)
    edit(folder, "generation_config.json", **values)
    assert runs.run("predict", folder, TEXT).out == before.out


@pytest.mark.parametrize("end", ["x", [1, "x"], {}, -1, 1.5])
def test_the_end_of_a_text_is_a_token(end, shelf, tmp_path):
    folder = copied(shelf, "decoder", tmp_path)
    edit(folder, "generation_config.json", eos_token_id=end)
    runs.run("predict", folder, TEXT).refused("`eos_token_id`", "no number of a token")


def test_settings_for_generating_that_cannot_be_read_are_not_left_out(shelf, tmp_path):
    folder = copied(shelf, "decoder", tmp_path)
    (folder / "generation_config.json").write_text("")
    runs.run("predict", folder, TEXT).refused("generation_config.json` is not valid JSON")


@pytest.mark.parametrize("theta", [0.0, -5.0, "x"])
def test_a_rotation_by_nothing_is_refused(theta, shelf, tmp_path):
    folder = copied(shelf, "decoder", tmp_path)
    edit(folder, "config.json", rope_parameters={"rope_type": "default", "rope_theta": theta})
    with pytest.raises(CheckpointError, match="no number above 0"):
        check_settings(json.loads((folder / "config.json").read_text()), "model")
    runs.run("predict", folder, TEXT).refused("`rope_parameters`")
