"""Analyses of quantized models, against slow versions and against cases whose answer is known."""

from __future__ import annotations

import copy
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from slimformer import Anatomy, Taps
from slimformer.methods.quantize import QuantizeConfig
from slimformer.methods.quantize.analysis import (
    attention_distances,
    attention_maps,
    attention_pictures,
    compare_rank_of_token,
    compare_ranking,
    cover_length_ratio,
    detect_case,
    dynamic_range,
    hessian_spectrum,
    largest_eigenvalue,
    layer_sweep,
    rank_ratio,
    ranking_loss,
    temperature_sweep,
)
from slimformer.methods.quantize.student import quantize_numbers
from tests import corpus, zoo


def is_picture(figure):
    assert ElementTree.fromstring(figure.svg).tag.endswith("svg")
    return True


@pytest.fixture(scope="module")
def models():
    teacher = zoo.build_headed("bert")
    return teacher, quantize_numbers(copy.deepcopy(teacher), QuantizeConfig())


def maps_for(counts, heads=2, length=6):
    torch.manual_seed(4)
    mask = torch.zeros(len(counts), length, dtype=torch.bool)
    for row, count in enumerate(counts):
        mask[row, :count] = True
    scores = torch.randn(2, len(counts), heads, length, length).masked_fill(~mask[:, None, None, :], -1e9)
    one, other = scores.softmax(-1)
    return one, other, mask


def rows_of(mask, attention):
    for b in range(len(mask)):
        tokens = mask[b].nonzero().flatten().tolist()
        for head in range(attention.shape[1]):
            for t in tokens:
                yield b, head, t, tokens


def test_cover_length_equals_the_slow_version():
    teacher, student, mask = maps_for([6, 3, 5])
    for k in (1, 2, 4):
        depths = []
        for b, head, t, tokens in rows_of(mask, teacher):
            top = sorted(tokens, key=lambda key: -float(teacher[b, head, t, key]))[:k]
            order = sorted(tokens, key=lambda key: -float(student[b, head, t, key]))
            depths.append(max(order.index(key) + 1 for key in top) / len(tokens))
        assert cover_length_ratio(teacher, student, mask, k) == pytest.approx(sum(depths) / len(depths))
    assert cover_length_ratio(teacher[:1], teacher[:1], mask[:1], 2) == pytest.approx(2 / 6)


def test_ranking_loss_equals_the_slow_version():
    teacher, student, mask = maps_for([6, 3])
    total, rows = 0.0, 0
    for b, head, t, tokens in rows_of(mask, teacher):
        rows += head == 0
        for i in tokens:
            for j in tokens:
                one, other = (float(map_[b, head, t, i] - map_[b, head, t, j]) for map_ in (teacher, student))
                if i < j and one * other < 0:
                    total += abs(other)
    assert ranking_loss(teacher, student, mask) == pytest.approx(total / rows, rel=1e-5)
    assert ranking_loss(teacher, teacher, mask) == 0


def test_rank_of_a_token_that_always_comes_first():
    _, student, mask = maps_for([6, 3])
    student[:, 1, :, 0] = 2.0
    ratios = rank_ratio(student, mask, token=0)
    assert ratios[1] == pytest.approx((6 * (1 / 6) + 3 * (1 / 3)) / 9)
    assert ratios[0] > ratios[1]


def test_comparisons_of_models(models):
    teacher, student = models
    batch = zoo.inputs_for("bert")
    implementation = teacher.config._attn_implementation
    found = compare_ranking(teacher, {"itself": teacher, "quantized": student}, batch, k=2)
    assert is_picture(found.figure)
    assert found.data["itself"]["ranking_loss"] == [0, 0, 0]
    assert all(value > 0 for value in found.data["quantized"]["ranking_loss"])
    pairs = zip(*(found.data[name]["cover_length_ratio"] for name in ("itself", "quantized")), strict=True)
    assert all(own < other for own, other in pairs)
    ranks = compare_rank_of_token({"teacher": teacher, "student": student}, batch)
    assert is_picture(ranks.figure)
    assert torch.tensor(ranks.data["teacher"]).shape == (3, 4)
    assert teacher.config._attn_implementation == implementation
    with torch.no_grad(), Taps(teacher, "all", ("map",)) as taps:
        teacher(**batch)
        for made, block in zip(attention_maps(teacher, batch), range(3), strict=True):
            torch.testing.assert_close(made, taps[block].map, rtol=1e-4, atol=1e-5)


def test_ranges_are_those_of_the_output(models):
    teacher, _ = models
    batch = zoo.inputs_for("bert")
    found = dynamic_range(teacher, batch, sentence=1)
    assert is_picture(found.figure)
    with torch.no_grad(), Taps(teacher, 1, ("attention_output",)) as taps:
        teacher(**batch)
    output = taps[1].attention_output[1, :7]  # two of nine are padding
    assert found.data.low[1] == pytest.approx(output.amin(-1).tolist())
    assert found.data.high[1] == pytest.approx(output.amax(-1).tolist())


def test_outliers_on_special_tokens_are_case_one():
    model = zoo.build("bert")
    batch = zoo.inputs_for("bert")
    special = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    special[:, 0] = True
    plain = detect_case(model, batch, special)
    assert is_picture(plain.figure)
    assert (plain.data.case, plain.data.suggestion) == (2, "map+output")
    assert len(plain.data.ratio) == 3

    class Louder(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return self.norm(x) * torch.where(torch.arange(x.shape[1]) == 0, 9.0, 1.0)[None, :, None]

    attention = model.encoder.layer[1].attention.output
    attention.LayerNorm = Louder(attention.LayerNorm)
    loud = detect_case(model, batch, special)
    assert (loud.data.case, loud.data.suggestion) == (1, "output+map")


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_distances_from_the_teacher(family):
    teacher = zoo.build(family)
    student = quantize_numbers(copy.deepcopy(teacher), QuantizeConfig(activations="none", embedding="float"))
    batch = zoo.inputs_for(family)
    found = attention_distances(teacher, {"itself": teacher, "quantized": student}, batch)
    assert is_picture(found.figure)
    assert found.data["itself"] == {"sa_gen": [0, 0, 0], "sa_prop": [0, 0, 0]}
    assert all(value > 0 for value in found.data["quantized"]["sa_gen"])
    # What all heads hand on, weighed by the probabilities, is what attention puts out, but for the last bias.
    block = Anatomy.of(teacher).blocks[0]
    with torch.no_grad(), Taps(teacher, 0, ("v", "map", "mha")) as taps:
        teacher(**batch)
        attention, mha = taps[0].map, taps[0].mha
        values = taps[0].v.unflatten(-1, (-1, block.head_width)).transpose(1, 2)
    values = values.repeat_interleave(block.heads // values.shape[1], dim=1)
    handed = torch.einsum("bhlw,ohw->bhlo", values, block.output.weight.unflatten(1, (block.heads, -1)))
    summed = (attention @ handed).sum(1) + (0 if block.output.bias is None else block.output.bias)
    torch.testing.assert_close(summed, mha, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shift", [0.0, 3.0, 40.0], ids=["valley", "saddle", "ridge"])
def test_largest_eigenvalue_of_a_known_surface(shift):
    torch.manual_seed(2)
    matrix = torch.randn(6, 6, dtype=torch.float64)
    matrix = matrix @ matrix.mT - shift * torch.eye(6, dtype=torch.float64)
    point = torch.randn(6, dtype=torch.float64, requires_grad=True)
    unused = torch.randn(3, dtype=torch.float64, requires_grad=True)
    loss = 0.5 * point @ matrix @ point
    expected = float(torch.linalg.eigvalsh(matrix)[-1])
    found = largest_eigenvalue(loss, [point, unused], iterations=500, tolerance=1e-10)
    assert found == pytest.approx(expected, rel=1e-6)
    assert largest_eigenvalue(point.sum(), [point]) == 0


def test_spectrum_of_plain_and_quantized_models(models):
    batch = {**zoo.inputs_for("bert"), "labels": torch.tensor([0, 1, 1])}
    named = dict(zip(("float", "quantized"), models, strict=True))
    looked_at = {name: list(Anatomy.of(model).blocks[0].module.parameters()) for name, model in named.items()}
    found = hessian_spectrum(named, [batch, batch], looked_at, iterations=5)
    assert is_picture(found.figure)
    for values in found.data.values():
        assert values[0] == values[1] != 0


def test_pictures(models):
    batch = zoo.inputs_for("bert")
    found = attention_pictures(
        dict(zip(("teacher", "quantized"), models, strict=True)), batch, block=1, sentence=2, tokens=list("abcde")
    )
    assert is_picture(found.figure)
    assert found.data["teacher"].shape == (5, 5)
    torch.testing.assert_close(found.data["teacher"].sum(-1), torch.ones(5), rtol=1e-4, atol=1e-4)
    one = attention_pictures({"teacher": models[0]}, batch, head=3)
    assert torch.equal(one.data["teacher"], attention_maps(models[0], batch)[-1][0, 3])


@pytest.mark.slow
def test_sweeps(tmp_path):
    base = corpus.model_folder(tmp_path / "base")
    data = corpus.data_folder(tmp_path / "data", train=32, dev=16)
    config = QuantizeConfig.make(
        {"model": base, "task": "classification", "data": data, "max_steps": 2, "batch_size": 8}
    )
    found = temperature_sweep(config, (1.0, 5.0))
    assert is_picture(found.figure)
    assert [row["value"] for row in found.data] == [1.0, 5.0]
    layers = layer_sweep(config, (1, 2), blocks=2)
    assert is_picture(layers.figure)
    assert all("accuracy" in row["metrics"] for row in layers.data)
