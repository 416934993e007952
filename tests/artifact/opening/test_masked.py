"""Masks on the native engine, put on their bases without torch, beside the same masks in torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import slimformer
from slimformer.artifact import MaskStorage, Step, fingerprint, load, save
from slimformer.artifact.opening.fingerprints import fingerprint_of
from slimformer.artifact.opening.masked import open_masked
from slimformer.errors import ArtifactError, ConfigError, SizeError
from slimformer.runtime.checkpoint import read_tensors
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import is_built
from tests import runs, zoo
from tests.parameters import slow

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
MASKS = ("mask", "mask-odd", "mask-regression", "mask-structured", "mask-tagging", "mask-question-answering")
needs_kernels = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
HEADED = {
    "bert": hf.BertForSequenceClassification,
    "roberta": hf.RobertaForTokenClassification,
    "xlm-roberta": hf.XLMRobertaForSequenceClassification,
    "distilbert": hf.DistilBertForQuestionAnswering,
    "electra": hf.ElectraForSequenceClassification,
    "mpnet": hf.MPNetForSequenceClassification,
    "modernbert": hf.ModernBertForSequenceClassification,
    "vit": hf.ViTForImageClassification,
    "deit": hf.DeiTForImageClassification,
}


def tokens(model, texts):
    return [each.ids for each in model.tokenizer.encode_batch(texts)]


def check_alike(native, model, *, images=False):
    """The logits of the engine are those of the mask's model in torch."""
    with torch.inference_mode():
        if images:
            pixels = torch.rand(2, 3, 16, 16)
            rows, outputs = native.run_images(pixels.numpy()), model(pixel_values=pixels)
        else:
            ids = torch.arange(5, 25)[None]
            rows, outputs = native.run(ids.tolist()), model(input_ids=ids)
    named = native.named(rows)
    for name in native.outputs:
        np.testing.assert_allclose(named[name], outputs[name].reshape(named[name].shape).numpy(), atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("name", slow(MASKS, but=["mask", "mask-structured"]))
def test_masks_of_earlier_versions_answer_as_in_torch(name):
    native, loaded = load(ARTIFACTS / name, engine="native"), load(ARTIFACTS / name)
    assert fingerprint_of(read_tensors(ARTIFACTS / "base")) == fingerprint(ARTIFACTS / "base")
    check_alike(native.encoder, loaded.model)
    assert native.tokenizer.get_vocab() == loaded.processor.get_vocab()


@needs_kernels
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("headed_base", [False, True])
@pytest.mark.parametrize("family", slow(HEADED, but=["modernbert"]))
def test_masks_of_every_family_answer_as_in_torch(tmp_path, family, headed_base, cut):
    """On a bare base and on one with a head of its own; with single weights left out, and whole neurons and heads."""
    if cut and family == "mpnet":
        pytest.skip("heads cannot be taken from single blocks of `mpnet`")
    base = zoo.build(family)
    config = zoo.CONFIGS[family]()
    config.num_labels = 2 if family == "distilbert" else 3
    if headed_base:
        base = zoo.enliven(HEADED[family](config)).eval()
    base.save_pretrained(tmp_path / "base")
    torch.manual_seed(7)
    model = HEADED[family].from_pretrained(tmp_path / "base", config=config).eval()
    anatomy = slimformer.Anatomy.of(model)
    names = {tensor.data_ptr(): name for name, tensor in model.state_dict().items()}
    bits = {}
    for block in anatomy.blocks[:2]:
        for matrix in (block.matrices["down"], block.matrices["output"]):
            weight = matrix.module.weight
            mask = torch.rand(weight.shape) > 0.3
            bits[names[weight.data_ptr()]] = mask
            with torch.no_grad():
                weight.mul_(mask)
    kept = {}
    if cut:
        kept = {1: {"neurons": torch.arange(64) % 3 > 0, "heads": torch.tensor([True, False, True, True])}}
        anatomy.blocks[1].keep_neurons(kept[1]["neurons"].nonzero().flatten().tolist())
        anatomy.blocks[1].keep_heads([0, 2, 3])
        state = model.state_dict()
        bits = {name: mask for name, mask in bits.items() if state[name].shape == mask.shape}
    folder = tmp_path / "task"
    save(folder, model, step=Step(method="mask", seed=0), base=tmp_path / "base", storage=MaskStorage(bits, kept))
    native = NativeEncoder(open_masked(folder).parts)
    check_alike(native, model, images=family in zoo.IMAGES)


@pytest.fixture
def shelf(tmp_path):
    """A mask beside its base, neither of which is found elsewhere."""
    for name in ("mask", "base"):
        shutil.copytree(ARTIFACTS / name, tmp_path / name)
    return tmp_path


@needs_kernels
def test_the_base_is_found_beside_the_mask_or_where_it_is_given(shelf):
    texts = ["the film was good", "dull"]
    beside = load(shelf / "mask", engine="native")
    (shelf / "base").rename(shelf / "elsewhere")
    given = load(shelf / "mask", engine="native", base=shelf / "elsewhere")
    assert beside.predict(texts) == given.predict(texts)
    assert len(given.predict(texts, top_k=None)[0]) == 3
    with pytest.raises(
        ArtifactError, match=r"the base `base` of the mask .* is not at .*; give its folder with `base`"
    ):
        load(shelf / "mask", engine="native")


@needs_kernels
def test_another_base_is_refused(shelf):
    with pytest.raises(ArtifactError, match=r"has not the weights that the mask in .* was made on.*leave out `engine`"):
        load(shelf / "mask", engine="native", base=ARTIFACTS / "base-odd")
    tokenizer = shelf / "base" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(ArtifactError, match=r"`tokenizer\.json` of base .* has changed since the mask was made"):
        load(shelf / "mask", engine="native")
    with pytest.raises(SizeError, match=r"`S` is asked for.*has one size only"):
        load(shelf / "mask", engine="native", size="S")
    with pytest.raises(ArtifactError, match="is no mask and needs none"):
        load(ARTIFACTS / "classifier", engine="native", base=shelf / "base")


FORGED = {
    "bits for a weight that there is not": lambda header: header["shapes"].update({"bert.none.weight": [2, 2]}),
    "another shape": lambda header: header["shapes"].update({name: [2, 2] for name in header["shapes"]}),
    "a shape that is none": lambda header: header["shapes"].update(dict.fromkeys(header["shapes"], 5)),
    "parts of a block that there is not": lambda header: header.update(kept={"9/neurons": 32}),
    "a drawing without a seed": lambda header: header.update(drawn={name: {} for name in header["shapes"]}),
    "a drawing of any size": lambda header: header.update(
        shapes={**header["shapes"], "drawn": [1 << 24, 1 << 24]}, drawn={"drawn": {"seed": 1, "deviation": 0.1}}
    ),
    "parts of any size": lambda header: header.update(kept={"0/neurons": 10**12}),
    "parts of a block before the first": lambda header: header.update(kept={"-1/neurons": 64}),
    "no shapes": lambda header: header.pop("shapes"),
    "a newer format": lambda header: header.update(format=3),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_mask_that_does_not_hold_together_is_refused(shelf, forge):
    path = shelf / "mask" / "mask.safetensors"
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["slimformer"])
    tensors = load_file(path)
    forge(header)
    save_file(tensors, path, metadata={"slimformer": json.dumps(header)})
    with pytest.raises(ArtifactError, match=r"copy (it|both) again|update it"):
        open_masked(shelf / "mask")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=r"copy (it|both) again|update it"):
        open_masked(shelf / "mask")


@needs_kernels
@pytest.mark.parametrize("name", ["mask", "mask-structured"])
def test_what_is_computed_the_mask_says_and_not_the_config_of_its_base(tmp_path, name):
    for each in (name, "base"):
        shutil.copytree(ARTIFACTS / each, tmp_path / each)
    before = NativeEncoder(open_masked(tmp_path / name).parts).run([[5, 6, 7]])
    path = tmp_path / "base" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_attention_heads": config["num_attention_heads"] // 2}))
    after = NativeEncoder(open_masked(tmp_path / name).parts).run([[5, 6, 7]])
    assert (np.asarray(before) == np.asarray(after)).all()


@needs_kernels
def test_a_wrong_base_where_it_was_recorded_hides_none_beside_the_mask(shelf):
    path = shelf / "mask" / "mask.safetensors"
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["slimformer"])
    header["base"]["source"] = str(ARTIFACTS / "base-odd")
    save_file(load_file(path), path, metadata={"slimformer": json.dumps(header)})
    assert open_masked(shelf / "mask").parts.tensors
    shutil.rmtree(shelf / "base")
    with pytest.raises(ArtifactError, match=r"base-odd` has not the weights that the mask in .* was made on"):
        open_masked(shelf / "mask")


def test_a_packed_base_is_left_to_torch(shelf):
    config = json.loads((shelf / "base" / "config.json").read_text())
    (shelf / "base" / "config.json").write_text(json.dumps({**config, "quantization_config": {}}))
    with pytest.raises(ArtifactError, match="is packed; leave out `engine`"):
        open_masked(shelf / "mask")


@needs_kernels
def test_a_size_is_chosen_at_loading():
    elastic = ARTIFACTS / "elastic"
    recorded = json.loads((ARTIFACTS / "answers.json").read_text())["elastic"]
    for size in ("S", "M", "XL"):
        native = load(elastic, engine="native", size=size)
        rows = native.encoder.run(tokens(native, recorded["request"]["text"]))
        np.testing.assert_allclose(rows, recorded["outputs"][f"logits@{size}"], rtol=1e-4, atol=1e-5)
    with pytest.raises(SizeError, match="there is no size `L`"):
        load(elastic, engine="native", size="L")
    with pytest.raises(ConfigError, match="`size` is `S`, and a model in torch has all sizes"):
        load(elastic, size="S")


@needs_kernels
def test_a_decoder_writes_at_the_size_of_its_loading(tmp_path):
    folder = runs.elastic_decoder(tmp_path / "elastic")
    small, whole = (load(folder, engine="native", size=size) for size in ("S", None))
    text = "a lovely film"
    assert small(text) == whole(text, size="S") != whole(text)
    assert small(text, size="XL") == whole(text)
    with pytest.raises(SizeError, match="there is no size `L`"):
        load(folder, engine="native", size="L")


@needs_kernels
def test_neither_torch_nor_pydantic_is_imported():
    code = f"""
import sys
import slimformer
slimformer.load({str(ARTIFACTS / "mask-structured")!r}, engine="native").predict("dull")
slimformer.load({str(ARTIFACTS / "elastic")!r}, engine="native", size="S").predict("dull")
assert not {{"torch", "transformers", "pydantic", "safetensors"}} & set(sys.modules), "imported"
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
