"""Masks on packed bases: trained, stored, loaded, merged and answered together in a bank, as the masked model is."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
import transformers as hf

import slimformer
from slimformer.artifact import MaskFile, merge, unpack
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, CheckpointError, ConfigError
from slimformer.inference.pipeline import open_pipeline
from slimformer.runtime.native import is_built
from slimformer.views import rounding_of
from slimformer.views.packed import packed_weights
from tests import runs
from tests.bank.packed import KINDS, write_base, write_mask
from tests.bank.shelf import TEXTS, expected
from tests.parameters import slow


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A ternary base with a mask for two kinds of task."""
    folder = tmp_path_factory.mktemp("packed")
    write_base(folder / "base")
    for kind in KINDS:
        write_mask(folder / kind, folder / "base", kind)
    return folder


def floats(model):
    return {
        name: tensor.dequantize() if hasattr(tensor, "panels") else tensor
        for name, tensor in model.state_dict().items()
    }


def test_a_mask_is_the_codes_of_its_base_times_its_bits(shelf):
    base, loaded = (slimformer.load(shelf / name).model for name in ("base", "classification"))
    bits = MaskFile.read(shelf / "classification" / "mask.safetensors")
    assert rounding_of(loaded) == rounding_of(base) is not None
    theirs, dropped = packed_weights(base), 0
    for name, packed in packed_weights(loaded).items():
        codes = theirs[name.removeprefix("bert.")].unpack()
        kept = bits.mask(name).bool() if name in bits.bits else torch.ones_like(codes, dtype=torch.bool)
        assert torch.equal(packed.unpack(), codes * kept)
        assert torch.equal(loaded.get_parameter(name), packed.weight())
        dropped += int((codes[~kept] != 0).sum())
    assert dropped > 100
    assert (shelf / "classification" / "mask.safetensors").stat().st_size < 20_000


def test_merging_gives_a_packed_model_that_answers_the_same(shelf, tmp_path):
    manifest = merge(shelf / "classification", tmp_path / "merged")
    assert (manifest.model.storage, manifest.model.packed) == ("packed", ["ternary"])
    ours, other = (slimformer.load(folder).model for folder in (tmp_path / "merged", shelf / "classification"))
    state = floats(other)
    assert all(torch.equal(tensor, state[name]) for name, tensor in floats(ours).items())
    asked = open_pipeline(tmp_path / "merged")(TEXTS)
    for answer, wanted in zip(asked, open_pipeline(shelf / "classification")(TEXTS), strict=True):
        assert answer["label"] == wanted["label"]
        assert answer["probability"] == pytest.approx(wanted["probability"], abs=1e-5)
    with pytest.raises(ArtifactError, match=r"`--store` is `half`, and the base of mask .* is packed"):
        merge(shelf / "classification", tmp_path / "half", store="half")


def test_evaluating_and_verifying(shelf, tmp_path):
    merge(shelf / "classification", tmp_path / "merged")
    one, other = (
        runs.run("evaluate", folder, "--data", shelf / "classification-data", "--json").json
        for folder in (shelf / "classification", tmp_path / "merged")
    )
    assert one["metrics"] == other["metrics"]
    slimformer.verify(shelf / "classification")


def test_a_bank_answers_as_each_tasks_own_model(shelf):
    bank = MaskBank(shelf / "base")
    for kind in KINDS:
        bank.add(kind, shelf / kind)
    asked = dict.fromkeys(KINDS, TEXTS)
    before = bank.logits(asked, batch_size=3)
    for kind in KINDS:
        for row, wanted in zip(before[kind], expected(shelf, kind, TEXTS), strict=True):
            torch.testing.assert_close(torch.from_numpy(row)[: len(wanted)], wanted, rtol=1e-4, atol=1e-5)
    bank.memory_limit = 10**9
    for kind in KINDS:
        bank.predict({kind: TEXTS})
        assert all(
            np.array_equal(row, other) for row, other in zip(bank.logits(asked, 3)[kind], before[kind], strict=True)
        )
    assert bank.ready == KINDS


def test_a_model_of_the_bank_is_saved_with_rounded_activations(shelf, tmp_path):
    bank = MaskBank(shelf / "base")
    bank.add("one", shelf / "classification")
    bank.use("one").save_pretrained(tmp_path / "saved")
    saved = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    loaded = slimformer.load(shelf / "classification").model
    assert rounding_of(saved) == rounding_of(loaded)
    state = loaded.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in saved.state_dict().items())


def test_another_base_is_refused(shelf, tmp_path):
    (tmp_path / "other").mkdir()
    write_base(tmp_path / "other" / "int4", "int4")
    with pytest.raises(ArtifactError, match="the fingerprint of its weights is"):
        MaskBank(tmp_path / "other" / "int4").add("one", shelf / "classification")
    # The same weights, whose activations are left alone.
    unpack(shelf / "base", tmp_path / "plain")
    for way in (
        lambda: MaskBank(tmp_path / "plain").add("one", shelf / "classification"),
        lambda: slimformer.load(shelf / "classification", base=tmp_path / "plain"),
    ):
        with pytest.raises(ArtifactError, match=r"its activations are rounded by None and were by {'bits': 8"):
            way()


def test_a_format_without_zero_and_whole_units_are_refused_before_training(shelf, tmp_path):
    write_base(tmp_path / "binary", "binary")
    with pytest.raises(ArtifactError, match="is packed as `binary`, which has no code for a weight that is dropped"):
        write_mask(tmp_path / "mask", tmp_path / "binary")
    with pytest.raises(ConfigError, match=r"`--structured` is `neurons`, and .* is packed, of which single weights"):
        write_mask(tmp_path / "units", shelf / "base", structured="neurons", sparsity=0.5)
    assert not (tmp_path / "mask").exists()
    assert not (tmp_path / "units").exists()


def test_a_mask_is_no_base(shelf, tmp_path):
    with pytest.raises(CheckpointError, match="is a mask on a base and no checkpoint"):
        write_mask(tmp_path / "mask", shelf / "classification")


@pytest.mark.parametrize("settings", slow([{"view": "int8"}, {"view": "int4", "group": 16}, {"rounding": False}]))
def test_other_packed_bases(settings, tmp_path):
    write_base(tmp_path / "base", **settings)
    write_mask(tmp_path / "classification", tmp_path / "base")
    merge(tmp_path / "classification", tmp_path / "merged")
    state = floats(slimformer.load(tmp_path / "classification").model)
    merged = slimformer.load(tmp_path / "merged").model
    assert all(torch.equal(tensor, state[name]) for name, tensor in floats(merged).items())
    bank = MaskBank(tmp_path / "base")
    bank.add("one", tmp_path / "classification")
    wanted = torch.stack(expected(tmp_path, "classification", TEXTS))
    torch.testing.assert_close(
        torch.from_numpy(np.stack(bank.logits({"one": TEXTS})["one"])), wanted, rtol=1e-4, atol=1e-5
    )


def test_a_packed_classifier_is_a_base_for_another_task(shelf, tmp_path):
    """Under another head than its own its weights are as packed, and its activations rounded, as before."""
    merge(shelf / "classification", tmp_path / "base")
    write_mask(tmp_path / "tagging", tmp_path / "base", "tagging")
    loaded = slimformer.load(tmp_path / "tagging").model
    assert rounding_of(loaded) is not None
    assert isinstance(loaded, hf.BertForTokenClassification)
    bank = MaskBank(tmp_path / "base")
    bank.add("one", tmp_path / "tagging")
    for row, wanted in zip(bank.logits({"one": TEXTS})["one"], expected(tmp_path, "tagging", TEXTS), strict=True):
        torch.testing.assert_close(torch.from_numpy(row)[: len(wanted)], wanted, rtol=1e-4, atol=1e-5)


def test_a_mask_moved_beside_its_base_finds_it(shelf, tmp_path):
    for name in ("base", "classification"):
        shutil.copytree(shelf / name, tmp_path / name)
    assert slimformer.load(tmp_path / "classification").manifest.base.name == "base"


@pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
def test_a_mask_by_itself_has_the_bits_of_the_merged_model_on_the_engine(shelf, tmp_path):
    for kind in KINDS:
        merge(shelf / kind, tmp_path / kind)
        one, other = (open_pipeline(folder / kind, engine="native")(TEXTS) for folder in (shelf, tmp_path))
        assert one == other
