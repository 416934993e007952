"""`pack`: a model of one's own with quantized views as a packed artifact."""

from __future__ import annotations

import pytest
import torch

from slimformer import Anatomy
from slimformer.artifact import load, pack, read_manifest, save, verify
from slimformer.errors import ViewError
from slimformer.views import QuantizedView, Rounding, attach, bake, round_activations
from slimformer.views.rounding import in_floats
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer

IDS = torch.tensor([[5, 6, 7]])


def viewed(format_name="int8"):
    model = tiny_bert()
    for block in Anatomy.of(model).blocks:
        for matrix in block.matrices.values():
            attach(matrix, QuantizedView(format_name))
    return model


@pytest.mark.parametrize(("format_name", "small"), [("int8", False), ("ternary", False), ("ternary", True)])
def test_what_was_shown_is_what_is_stored(format_name, small, tmp_path):
    model = viewed(format_name)
    round_activations(model, Rounding(bits=8, per="token"))
    shown = Anatomy.of(model).blocks[0].query.weight.detach().clone()
    assert pack(model, small=small) is model
    assert torch.equal(Anatomy.of(model).blocks[0].query.weight, shown)
    manifest = save(tmp_path / "out", model, processor=tiny_tokenizer(), step=STEP)
    assert manifest.model.storage == "packed"
    assert (tmp_path / "out" / "packed.safetensors").is_file()
    verify(tmp_path / "out")
    again = load(tmp_path / "out").model
    with torch.no_grad(), in_floats(again):
        assert torch.equal(again(IDS).logits, model(IDS).logits)
    names = read_manifest(tmp_path / "out").model.packed
    assert len(names) == 1
    assert names[0].startswith(format_name)


def test_rounded_activations_alone_are_enough(tmp_path):
    model = tiny_bert()
    round_activations(model, Rounding(bits=8, per="token"))
    assert save(tmp_path / "out", pack(model), step=STEP).model.storage == "packed"


def test_a_model_without_views_is_refused():
    model = viewed()
    bake(model)
    with pytest.raises(ViewError, match=r"has no quantized view whose codes could be packed; attach `QuantizedView`"):
        pack(model)
