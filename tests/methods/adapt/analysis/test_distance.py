"""Distances between weights: of models, state dicts and folders, whatever stands around the blocks."""

from __future__ import annotations

import math

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from slimformer.anatomy import Anatomy
from slimformer.errors import CheckpointError
from slimformer.methods.adapt.analysis import distance_by_round, weight_distance
from tests import zoo


def moved(model, seed: int = 1, size: float = 0.1):
    """A copy of a model with every parameter changed by noise, buffers too."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in (*copy.parameters(), *(each for each in copy.buffers() if each.is_floating_point())):
            tensor += size * torch.randn_like(tensor)
    return copy.eval()


def slow_distance(one, other, keep):
    """Over parameters, one number after the other."""
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    squares = [
        (float(a) - float(b)) ** 2
        for (name, first), (_, second) in pairs
        if keep(name)
        for a, b in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True)
    ]
    return math.sqrt(math.fsum(squares)), len(squares)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_models_of_every_family(family):
    one = zoo.build_headed(family)
    other = moved(one)
    measured = weight_distance(one, other)
    bases = Anatomy.of(one).base, Anatomy.of(other).base
    total, count = slow_distance(*bases, lambda name: not name.startswith("pooler."))
    assert measured.total == pytest.approx(total)
    assert measured.parameters == count
    path = Anatomy.of(one).family.blocks
    for block, value in enumerate(measured.blocks):
        inside, _ = slow_distance(*bases, lambda name, start=f"{path}.{block}.": name.startswith(start))
        assert value == pytest.approx(inside)
    assert math.hypot(*measured.blocks, measured.rest) == pytest.approx(total)
    zero = moved(one, size=0.0)
    assert weight_distance(one, zero).total == weight_distance(one, zero).relative == 0.0
    # A state dict has the same blocks, and a bare model too.
    states = weight_distance(one.state_dict(), other.state_dict())
    assert states.blocks == measured.blocks
    assert states.total == pytest.approx(measured.total)
    assert weight_distance(bases[0], other).total == pytest.approx(measured.total)


def test_heads_poolers_and_tables_of_another_size_are_left_out():
    bare = zoo.build("bert")
    torch.manual_seed(5)
    headed = hf.BertForMaskedLM(hf.BertConfig(**{**zoo.TEXT, "vocab_size": 111}))
    headed.bert.encoder.load_state_dict(bare.encoder.state_dict())
    measured = weight_distance(bare, headed)
    assert measured.left_out == ("embeddings.word_embeddings.weight",)
    assert measured.blocks == (0.0, 0.0, 0.0)
    assert measured.rest == measured.total > 0


def test_the_share_of_the_norm():
    one = zoo.build("bert")
    twice = moved(one, size=0.0)
    with torch.no_grad():
        for parameter in twice.parameters():
            parameter *= 2
    measured = weight_distance(one, twice)
    assert measured.relative == pytest.approx(1.0)
    assert measured.summary()["relative"] == measured.relative


def test_names_and_files(tmp_path):
    one = zoo.build_headed("bert")
    other = moved(one)
    for name, model in (("one", one), ("other", other)):
        model.save_pretrained(tmp_path / name)
    expected = weight_distance(one, other)
    assert weight_distance(tmp_path / "one", str(tmp_path / "other")) == expected
    assert (
        weight_distance(tmp_path / "one", load_file(tmp_path / "other" / "model.safetensors")).total == expected.total
    )


def test_rounds():
    start = zoo.build("bert")
    rounds = {"round 0": moved(start, 1, 0.2), "round 1": moved(start, 2, 0.1)}
    finding = distance_by_round(start, rounds)
    assert finding.data == {name: weight_distance(start, each) for name, each in rounds.items()}
    assert finding.data["round 0"].total > finding.data["round 1"].total
    assert "<svg" in finding.figure.svg
    assert f"round 1 {finding.data['round 1'].total:.4g}" in finding.figure.caption


def test_weights_that_cannot_be_compared():
    one = zoo.build("bert")
    shallow = hf.BertModel(hf.BertConfig(**{**zoo.TEXT, "num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match=r"the BertModel has 3 blocks and the BertModel 2; compare"):
        weight_distance(one, shallow)
    narrow = hf.BertModel(hf.BertConfig(**{**zoo.TEXT, "intermediate_size": 32}))
    with pytest.raises(CheckpointError, match=r"`intermediate.dense.bias` of block 0 is not in both .* same shape"):
        weight_distance(one, narrow)
    viewed = moved(one)
    torch.nn.utils.parametrize.register_parametrization(
        viewed.encoder.layer[1].output.dense, "weight", torch.nn.Identity()
    )
    with pytest.raises(CheckpointError, match=r"of block 1 is not in both"):
        weight_distance(one, viewed)
    with pytest.raises(CheckpointError, match=r"names such as `a.weight` has no blocks of a known family"):
        weight_distance({"a.weight": torch.zeros(1)}, one)
    with pytest.raises(CheckpointError, match="no round was given"):
        distance_by_round(one, {})
