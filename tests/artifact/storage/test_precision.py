"""Weights in 16 bits: half the file, the answers of what is stored, and no loss that nobody is told of."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from slimformer.artifact import load, read_manifest, round_weights, save, verify
from slimformer.artifact.storage.precision import bytes_as, check_metric, check_range
from slimformer.errors import ArtifactError
from slimformer.models.settings import STORES
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer

SHORT = ["half", "bfloat16"]


def stored(folder, store, model=None):
    model = tiny_bert() if model is None else model
    rounded = round_weights(model, store)
    save(folder, model, processor=tiny_tokenizer(), step=STEP, rounded=rounded)
    return model


@pytest.mark.parametrize("store", SHORT)
def test_the_file_is_half_as_large_and_answers_as_the_model_in_memory(store, tmp_path):
    stored(tmp_path / "whole", "float32")
    model = stored(tmp_path / "short", store)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "short")]
    assert sizes[1] < 0.6 * sizes[0]
    tensors = load_file(tmp_path / "short" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, STORES[store])}
    assert verify(tmp_path / "short").max_difference < 1e-5
    loaded = load(tmp_path / "short").model
    assert loaded.dtype == torch.float32
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_transformers_alone_gives_the_same_answers(tmp_path):
    model = stored(tmp_path / "short", "half")
    alone = hf.BertForSequenceClassification.from_pretrained(tmp_path / "short").eval()
    assert alone.dtype == torch.float32
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(alone(ids).logits, model(ids).logits)


def test_what_rounding_changed_is_recorded(tmp_path):
    stored(tmp_path / "half", "half")
    stored(tmp_path / "bfloat16", "bfloat16")
    half, bfloat = (read_manifest(tmp_path / store).model for store in SHORT)
    assert (half.dtype, half.rounded.dtype) == ("float32", "float16")
    assert 0 < half.rounded.moved < bfloat.rounded.moved < 0.1
    assert "| Stored as | float16 |" in (tmp_path / "half" / "README.md").read_text()
    stored(tmp_path / "float32", "float32")
    assert read_manifest(tmp_path / "float32").model.rounded is None
    assert "Stored as" not in (tmp_path / "float32" / "README.md").read_text()


def test_a_model_of_16_bits_is_written_as_asked(tmp_path):
    stored(tmp_path / "whole", "float32", tiny_bert().to(torch.bfloat16))
    stored(tmp_path / "short", "bfloat16", tiny_bert().to(torch.bfloat16))
    whole, short = (read_manifest(tmp_path / name).model for name in ("whole", "short"))
    assert (whole.dtype, whole.rounded) == ("float32", None)
    assert (short.dtype, short.rounded.moved) == ("float32", 0)


def test_a_weight_beyond_the_range_is_named():
    model = tiny_bert()
    with torch.no_grad():
        model.classifier.weight[0, 0] = -7e4
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    message = r"`classifier.weight` holds 7e\+04, beyond 65,504, .* give `--store bfloat16`"
    for refuse in (check_range, round_weights):
        with pytest.raises(ArtifactError, match=message):
            refuse(model, "half")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert round_weights(model, "bfloat16").dtype == "bfloat16"


def test_answers_that_move_too_far_are_refused():
    """Differences of large weights are what rounding loses."""
    model = tiny_bert()
    with torch.no_grad():
        model.classifier.weight[:] = 1000 + torch.rand_like(model.classifier.weight)
        model.bert.pooler.dense.weight[:] = 0
        model.bert.pooler.dense.bias[:] = torch.tensor([2.0, -2.0]).repeat(8)
        model.classifier.bias[:] = 0
    with pytest.raises(ArtifactError, match=r"answers move by [\d.]+% .* where 2% is allowed; give `--store float32`"):
        round_weights(model, "half")


@pytest.mark.parametrize(("before", "after", "greater"), [(0.8, 0.75, True), (0.0, -0.1, True), (10.0, 10.6, False)])
def test_a_metric_that_is_lost_is_an_error(before, after, greater):
    with pytest.raises(ArtifactError, match=r"rounded weights give f1 .* give `--store float32`"):
        check_metric("f1", before, after, greater_is_better=greater)
    check_metric("f1", before, before - 0.01 * abs(before) if greater else before * 1.01, greater_is_better=greater)
    check_metric("f1", after, before, greater_is_better=greater)  # a gain is none


def test_weights_changed_since_are_not_rounded_unnoticed(tmp_path):
    model = tiny_bert()
    rounded = round_weights(model, "half")
    with torch.no_grad():
        model.classifier.weight += 1e-6
    with pytest.raises(ArtifactError, match=r"`classifier.weight` was changed after it was rounded to float16"):
        save(tmp_path / "out", model, processor=tiny_tokenizer(), step=STEP, rounded=rounded)
    assert not list(tmp_path.iterdir())


def test_bytes_are_counted_by_type():
    tensors = {"weight": torch.zeros(3), "position_ids": torch.zeros(2, dtype=torch.int64)}
    assert [bytes_as(tensors, store) for store in (None, "float32", "half", "bfloat16")] == [28, 28, 22, 22]
