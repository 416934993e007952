"""Mask files: packed bits, the base they belong to, and everything that can be wrong with either."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from slimformer.artifact import MaskFile, Step, load, merge, save, verify
from slimformer.artifact.layout import MASK
from slimformer.artifact.storage.mask_file import HEADER, _sum, pack, unpack
from slimformer.errors import ArtifactError
from tests import corpus
from tests.artifact.forging import resum


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A base, a mask on it and another base of the same shape; tests copy what they change."""
    folder = tmp_path_factory.mktemp("shelf")
    corpus.model_folder(folder / "base")
    torch.manual_seed(1)
    other = hf.BertModel(hf.BertConfig.from_pretrained(folder / "base"))
    other.save_pretrained(folder / "other")
    corpus.tokenizer().save_pretrained(folder / "other")
    save(folder / "mask", masked_model(folder / "base"), **described(folder), storage="mask")
    return folder


def described(folder):
    processor = hf.AutoTokenizer.from_pretrained(folder / "base")
    return {"base": folder / "base", "processor": processor, "step": Step(method="mask", seed=0)}


def masked_model(base):
    torch.manual_seed(7)
    model = hf.BertForSequenceClassification.from_pretrained(base).eval()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.output.dense.weight.mul_(torch.rand(32, 64) > 0.1)
            layer.attention.self.query.weight.mul_(torch.rand(32, 32) > 0.1)
    return model


@pytest.fixture
def mask(shelf, tmp_path):
    """A copy of the mask to harm, with its base at hand."""
    shutil.copytree(shelf / "mask", tmp_path / "mask")
    return tmp_path / "mask"


@pytest.mark.parametrize("count", [1, 7, 8, 9, 640])
def test_packing_keeps_every_bit(count):
    flags = torch.rand(count) > 0.3
    packed = pack(flags)
    assert packed.dtype == torch.uint8
    assert packed.numel() == -(-count // 8)
    assert [packed[i // 8] >> i % 8 & 1 for i in range(count)] == flags.int().tolist()
    assert torch.equal(unpack(packed, (count,)).bool(), flags)


def test_only_what_differs_is_stored(shelf):
    file = MaskFile.read(shelf / "mask" / MASK)
    assert set(file.whole) == {"classifier.weight", "classifier.bias"}
    assert sorted(file.shapes.values()) == [(32, 32), (32, 32), (32, 64), (32, 64)]
    assert file.masked_weights == 2 * (1024 + 2048)
    assert file.base.name == "base"
    loaded = load(shelf / "mask")
    model = masked_model(shelf / "base")
    for name, tensor in model.state_dict().items():
        assert tensor.numpy().tobytes() == loaded.model.state_dict()[name].numpy().tobytes(), name
    assert loaded.processor("good")["input_ids"] == corpus.tokenizer()("good")["input_ids"]
    assert verify(shelf / "mask").max_difference == 0


def test_the_card_says_that_it_is_a_mask(shelf):
    card = (shelf / "mask" / "README.md").read_text()
    assert "This is a mask: one bit for each masked weight of `base`" in card
    assert "from_pretrained" not in card


def test_a_tokenizer_of_its_own_is_saved_along(shelf, tmp_path):
    given = described(shelf)
    given["processor"].model_max_length = 7
    save(tmp_path / "own", masked_model(shelf / "base"), **given, storage="mask")
    assert (tmp_path / "own" / "tokenizer.json").exists()
    assert load(tmp_path / "own").processor.model_max_length == 7


@pytest.mark.slow
def test_the_base_is_found_beside_the_mask(shelf, tmp_path):
    shutil.copytree(shelf / "base", tmp_path / "one" / "base")
    save(tmp_path / "one" / "mask", masked_model(shelf / "base"), **described(tmp_path / "one"), storage="mask")
    shutil.move(tmp_path / "one", tmp_path / "two")
    assert load(tmp_path / "two" / "mask").manifest.base.name == "base"


@pytest.mark.slow
def test_a_base_that_is_gone_can_be_given(shelf, tmp_path):
    shutil.copytree(shelf / "base", tmp_path / "here" / "base")
    save(tmp_path / "mask", masked_model(shelf / "base"), **described(tmp_path / "here"), storage="mask")
    shutil.move(tmp_path / "here" / "base", tmp_path / "renamed")
    with pytest.raises(
        ArtifactError, match=r"the base `base` of the mask in .* is not at `.*here/base`; give its folder"
    ):
        load(tmp_path / "mask")
    assert load(tmp_path / "mask", base=tmp_path / "renamed").processor is not None
    assert verify(tmp_path / "mask", base=tmp_path / "renamed").max_difference == 0
    with pytest.raises(ArtifactError, match="is not at `nowhere/at/all`"):
        load(tmp_path / "mask", base="nowhere/at/all")


def test_a_given_base_without_weights_is_an_error_of_its_own(shelf, tmp_path):
    shutil.copytree(shelf / "base", tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ArtifactError, match="empty` has no weights"):
        load(shelf / "mask", base=tmp_path / "empty")


def test_another_base_is_refused(shelf, tmp_path):
    with pytest.raises(
        ArtifactError, match=r"other` is not the base of the mask in .*: the fingerprint of its weights is"
    ):
        load(shelf / "mask", base=shelf / "other")
    with pytest.raises(ArtifactError, match="is not the base of the mask"):
        verify(shelf / "mask", base=shelf / "other")
    with pytest.raises(ArtifactError, match="is not the base of the mask"):
        merge(shelf / "mask", tmp_path / "plain", base=shelf / "other")
    assert not (tmp_path / "plain").exists()


def test_a_base_that_was_changed_since_is_refused(shelf, tmp_path):
    shutil.copytree(shelf / "base", tmp_path / "base")
    save(tmp_path / "mask", masked_model(shelf / "base"), **described(tmp_path), storage="mask")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][0, 0] += 1
    save_file(weights, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="base` is not the base of the mask"):
        load(tmp_path / "mask")


def test_a_tokenizer_that_was_changed_since_is_refused(shelf, tmp_path):
    shutil.copytree(shelf / "base", tmp_path / "base")
    save(tmp_path / "mask", masked_model(shelf / "base"), **described(tmp_path), storage="mask")
    path = tmp_path / "base" / "tokenizer.json"
    path.write_text(path.read_text().replace("good", "nice"))
    with pytest.raises(ArtifactError, match=r"`tokenizer.json` of base .* has changed since the mask was made"):
        load(tmp_path / "mask")


@pytest.mark.parametrize("check", [True, False])
def test_a_truncated_mask(mask, check):
    content = (mask / MASK).read_bytes()
    (mask / MASK).write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="is cut short"):
        load(mask, check=check)
    with pytest.raises(ArtifactError, match="is cut short"):
        MaskFile.read(mask / MASK)


def test_every_flipped_bit_is_found(mask):
    content = (mask / MASK).read_bytes()
    for place in range(0, len(content), len(content) // 60):
        harmed = bytearray(content)
        harmed[place] ^= 1
        (mask / MASK).write_bytes(harmed)
        with pytest.raises(ArtifactError):
            MaskFile.read(mask / MASK)
        with pytest.raises(ArtifactError, match=r"`mask.safetensors` of artifact .* was changed"):
            load(mask)
        with pytest.raises(ArtifactError, match="was changed"):
            verify(mask)


def test_a_flipped_bit_is_found_without_the_sums_of_the_folder(mask):
    content = bytearray((mask / MASK).read_bytes())
    content[-5] ^= 1
    (mask / MASK).write_bytes(content)
    resum(mask)
    with pytest.raises(ArtifactError, match="was changed after it was written: its sum does not fit"):
        load(mask, check=False)


def forge(path, change):
    """Write a mask file anew with another content and a sum that fits it."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[HEADER])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    header.pop("sha256")
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    header["sha256"] = _sum(text, tensors)
    save_file(tensors, path, metadata={HEADER: json.dumps(header)})


def reshape(header, tensors):
    name = next(iter(header["shapes"]))
    header["shapes"][name] = [16, 8]
    tensors[f"bits/{name}"] = torch.zeros(17, dtype=torch.uint8)


def rename(header, tensors):
    name = next(iter(header["shapes"]))
    header["shapes"]["elsewhere.weight"] = header["shapes"].pop(name)
    tensors["bits/elsewhere.weight"] = tensors.pop(f"bits/{name}")


def shorten(header, tensors):
    name = f"bits/{next(iter(header['shapes']))}"
    tensors[name] = tensors[name][:-1]


def cut(header, tensors):
    name = f"bits/{next(iter(header['shapes']))}"
    tensors[name] = torch.zeros(5, dtype=torch.uint8)


def explode(header, tensors):
    """A few bytes that claim to be a terabyte of bits."""
    name = next(iter(header["shapes"]))
    header["shapes"][name] = [1 << 20, 1 << 20]
    tensors[f"bits/{name}"] = torch.tensor([1, *zlib.compress(b"")], dtype=torch.uint8)


def inflate(header, tensors):
    """A few bytes that grow to many more gaps than there are bits."""
    name = next(iter(header["shapes"]))
    tensors[f"bits/{name}"] = torch.tensor([1, *zlib.compress(b"\0" * 10_000_000)], dtype=torch.uint8)


def forget(header, tensors):
    header["shapes"].popitem()


def narrow(header, tensors):
    header["kept"] = {"0/neurons": 16}
    tensors["kept/0/neurons"] = torch.full((2,), 255, dtype=torch.uint8)


def newer(header, tensors):
    header["format"] = 9


def draw(header, tensors):
    header["drawn"] = {"elsewhere.weight": {"seed": 1, "deviation": 0.02}}


def unknown(header, tensors):
    header["colour"] = "red"


def beyond(header, tensors):
    header["kept"] = {"0/fingers": 8}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (reshape, r"is for `.*` of \[16, 8\], and in a BertForSequenceClassification on this base it has \[\d+, \d+\]"),
        (rename, "is for `elsewhere.weight` .* there is no such weight"),
        (shorten, "the bits of `.*` cannot be read: the gaps are cut short"),
        (cut, r"does not hold the bits of `.*`: there are 4 bytes for [\d,]+ bits instead of"),
        (explode, r"is for `.*` of \[1048576, 1048576\], and in a .* on this base it has \[\d+, \d+\]"),
        (inflate, "the bits of `.*` cannot be read: the gaps are cut short, or more than there are bits"),
        (forget, "has bits or a shape of `.*`, but not both"),
        (narrow, "is for 16 neurons in block 0, and the base has 64"),
        (newer, "is of format 9, and this slimformer reads up to format 2; update slimformer"),
        (draw, "tells how `elsewhere.weight` was drawn and has no bits of it"),
        (unknown, "the header of `.*` cannot be read: it has the unknown key `colour`; copy it again"),
        (beyond, "the header of `.*` cannot be read"),
    ],
)
def test_masks_of_another_shape(mask, change, said):
    forge(mask / MASK, change)
    resum(mask)
    with pytest.raises(ArtifactError, match=said):
        load(mask, check=False)


def test_the_same_mask_is_the_same_bytes(shelf, tmp_path):
    """However often it is written; safetensors orders its metadata at random each time."""
    for number in range(4):
        MaskFile.read(shelf / "mask" / MASK).write(tmp_path / f"{number}.safetensors")
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {(shelf / "mask" / MASK).read_bytes()}


@pytest.mark.slow
def test_the_same_mask_is_the_same_bytes_in_every_process(shelf, tmp_path):
    """Written by processes that hash differently."""
    code = (
        "import sys; from pathlib import Path; from slimformer.artifact import MaskFile;"
        "MaskFile.read(Path(sys.argv[1])).write(Path(sys.argv[2]))"
    )
    for number in range(4):
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-c", code, str(shelf / "mask" / MASK), str(tmp_path / f"{number}.safetensors")]
        subprocess.run(command, check=True, env=environment)
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {(shelf / "mask" / MASK).read_bytes()}


def test_a_file_that_is_no_mask(mask):
    save_file({"weight": torch.zeros(2)}, mask / MASK)
    with pytest.raises(ArtifactError, match=r"is no mask: its header lacks `slimformer`"):
        MaskFile.read(mask / MASK)
    with pytest.raises(ArtifactError, match="there is no mask at"):
        MaskFile.read(mask / "nowhere.safetensors")


def test_a_model_of_another_base_is_stored_whole(shelf, tmp_path):
    model = masked_model(shelf / "other")
    save(tmp_path / "mask", model, **described(shelf), storage="mask")
    assert not MaskFile.read(tmp_path / "mask" / MASK).bits
    assert torch.equal(load(tmp_path / "mask").model.bert.pooler.dense.weight, model.bert.pooler.dense.weight)


def test_a_mask_is_not_merged_over_itself(shelf, tmp_path):
    mask = shutil.copytree(shelf / "mask", tmp_path / "mask")
    (tmp_path / "link").symlink_to("mask")
    with pytest.raises(ArtifactError, match="itself, which would be lost"):
        merge(mask, tmp_path / "link", base=shelf / "base", overwrite=True)
    assert verify(mask, base=shelf / "base")


def test_a_mask_is_not_merged_over_its_base(shelf):
    with pytest.raises(ArtifactError, match="the base of the mask, which would be lost"):
        merge(shelf / "mask", shelf / "base", base=shelf / "base", overwrite=True)


def test_merging(shelf, tmp_path):
    manifest = merge(shelf / "mask", tmp_path / "plain")
    assert [step.method for step in manifest.steps] == ["mask", "merge"]
    plain = hf.BertForSequenceClassification.from_pretrained(tmp_path / "plain").state_dict()
    assert all(torch.equal(tensor, plain[name]) for name, tensor in load(shelf / "mask").model.state_dict().items())
    assert verify(tmp_path / "plain").max_difference == 0
    with pytest.raises(ArtifactError, match="is no mask; it is a checkpoint already"):
        merge(tmp_path / "plain", tmp_path / "again")
    with pytest.raises(ArtifactError, match="exists; choose another `--out`"):
        merge(shelf / "mask", tmp_path / "plain")
    merge(shelf / "mask", tmp_path / "plain", overwrite=True)


def test_a_base_is_refused_where_none_is_needed(shelf, tmp_path):
    save(tmp_path / "plain", masked_model(shelf / "base"), **described(shelf))
    with pytest.raises(ArtifactError, match="is no mask and needs none; leave it out"):
        load(tmp_path / "plain", base=shelf / "base")
