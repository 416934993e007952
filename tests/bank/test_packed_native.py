"""Masks on a packed base in the native engine: the bits of each masked model by itself, whatever is asked beside it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import transformers as hf

from slimformer.artifact import merge
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import is_built
from tests import corpus
from tests.bank.packed import KINDS, write_base, write_mask
from tests.bank.shelf import TEXTS, on_every_set
from tests.parameters import slow

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

ASKED = dict.fromkeys(KINDS, TEXTS)


@pytest.fixture(
    scope="module", params=slow([{"view": "ternary"}, {"view": "int4", "group": 16}], but=[{"view": "ternary"}])
)
def shelf(request, tmp_path_factory):
    """A packed base, a mask for each of two kinds of task, and what comes of each when it is merged."""
    folder = tmp_path_factory.mktemp("packed")
    write_base(folder / "base", **request.param)
    for kind in KINDS:
        write_mask(folder / kind, folder / "base", kind)
        merge(folder / kind, folder / f"{kind}-merged")
    return folder


def filled(shelf, **settings):
    bank = MaskBank(shelf / "base", **settings)
    for kind in KINDS:
        bank.add(kind, shelf / kind)
    return bank


def merged(shelf):
    """What the masked models answer by themselves on the engine, text by text."""
    read = corpus.tokenizer()
    encoders = {kind: NativeEncoder(shelf / f"{kind}-merged") for kind in KINDS}
    return {
        kind: [np.squeeze(encoder.run([read(text)["input_ids"]])) for text in TEXTS]
        for kind, encoder in encoders.items()
    }


def assert_same_bits(found, expected):
    for kind, rows in expected.items():
        for row, wanted in zip(found[kind], rows, strict=True):
            assert np.array_equal(row[: len(wanted)].view(np.int32), wanted.view(np.int32))


def test_a_task_has_the_bits_of_its_masked_model_in_any_batch(shelf):
    bank, expected, names = filled(shelf, engine="native"), merged(shelf), [*KINDS]
    for size in (1, 3, 32):
        random.Random(size).shuffle(names)
        assert_same_bits(bank.logits({name: ASKED[name] for name in names}, batch_size=size), expected)
    for kind in KINDS:
        assert_same_bits({kind: [bank.logits({kind: [text]})[kind][0] for text in TEXTS]}, {kind: expected[kind]})


def test_the_bits_are_the_same_on_every_instruction_set(shelf, monkeypatch):
    expected = merged(shelf)
    for _ in on_every_set(monkeypatch):
        assert_same_bits(filled(shelf, engine="native", check=False).logits(ASKED), expected)


def test_answers_are_those_of_the_bank_in_torch(shelf):
    native, other = filled(shelf, engine="native"), filled(shelf)
    read = corpus.tokenizer()
    for kind, rows in other.logits(ASKED).items():
        for text, row, wanted in zip(TEXTS, native.logits(ASKED)[kind], rows, strict=True):
            here = slice(len(read(text)["input_ids"]) if kind == "tagging" else None)  # what follows is padding
            # A value in the middle of two steps is rounded either way.
            assert np.abs(row[here] - wanted[here]).max() < 0.05 * np.abs(wanted[here]).max()
    assert native.memory()["base"] < other.memory()["base"] / 3


def test_what_the_engine_would_round_otherwise_is_refused(tmp_path):
    write_base(tmp_path / "floats", rounding=False)
    with pytest.raises(ArtifactError, match="does not round activations to 8 bits for each token"):
        MaskBank(tmp_path / "floats", engine="native")
    write_base(tmp_path / "bare", head=hf.BertForMaskedLM)  # a base without a pooler
    write_mask(tmp_path / "classification", tmp_path / "bare")
    with pytest.raises(ArtifactError, match=r"has a `bert.pooler.dense` of its own in floats"):
        MaskBank(tmp_path / "bare", engine="native").add("one", tmp_path / "classification")
    bank = MaskBank(tmp_path / "bare")
    bank.add("one", tmp_path / "classification")
    assert len(bank.predict({"one": TEXTS})["one"]) == len(TEXTS)
