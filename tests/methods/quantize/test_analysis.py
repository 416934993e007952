"""Analyses of quantized models, against slow versions and against cases whose answer is known."""

from __future__ import annotations

import copy
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
import transformers as hf
from torch import nn
from torch.profiler import ProfilerActivity, profile

from slimformer import Anatomy, Taps
from slimformer.errors import ConfigError
from slimformer.methods.quantize import QuantizeConfig
from slimformer.methods.quantize.analysis import (
    attention_distances,
    attention_maps,
    attention_pictures,
    beta_sweep,
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
    tokens_in,
)
from slimformer.methods.quantize.analysis.sweeps import BETAS, spaced_blocks
from slimformer.methods.quantize.student import quantize_numbers
from tests import corpus, zoo
from tests.runs import headed


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
        depths = {0: [], 1: []}
        for b, head, t, tokens in rows_of(mask, teacher):
            top = sorted(tokens, key=lambda key: -float(teacher[b, head, t, key]))[:k]
            order = sorted(tokens, key=lambda key: -float(student[b, head, t, key]))
            depths[head].append(max(order.index(key) + 1 for key in top) / len(tokens))
        expected = [sum(each) / len(each) for each in depths.values()]
        assert cover_length_ratio(teacher, student, mask, k) == pytest.approx(expected)
    assert cover_length_ratio(teacher[:1], teacher[:1], mask[:1], 2) == pytest.approx([2 / 6] * 2)


def test_ranking_loss_equals_the_slow_version():
    teacher, student, mask = maps_for([6, 3])
    teacher[0, :, 2, 1] = teacher[0, :, 2, 4]  # of equals neither has to come first
    totals, rows = [0.0, 0.0], 0
    for b, head, t, tokens in rows_of(mask, teacher):
        rows += head == 0
        for i in tokens:
            for j in tokens:
                one, other = (float(map_[b, head, t, i] - map_[b, head, t, j]) for map_ in (teacher, student))
                if i < j and one * other < 0:
                    totals[head] += abs(other)
    assert ranking_loss(teacher, student, mask) == pytest.approx([total / rows for total in totals], rel=1e-5)
    assert ranking_loss(teacher, teacher, mask) == [0, 0]


def test_ranking_of_long_texts_takes_the_memory_of_maps():
    """All pairs of 512 tokens would be 512 times as much."""
    one, other, mask = maps_for([512], heads=1, length=512)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        ranking_loss(one, other, mask)
    largest = max(event.cpu_memory_usage for event in profiled.events())
    assert one.nbytes <= largest <= 8 * one.nbytes


def test_rank_of_a_token_that_always_comes_first():
    _, student, mask = maps_for([6, 3])
    student[:, 1, :, 0] = 2.0
    ratios = rank_ratio(student, mask, token=0)
    assert ratios[1] == pytest.approx((6 * (1 / 6) + 3 * (1 / 3)) / 9)
    assert ratios[0] > ratios[1]


def test_rank_of_chosen_tokens():
    _, student, mask = maps_for([6, 3])
    batch = {"input_ids": torch.tensor([[2, 7, 3, 8, 9, 3], [2, 7, 3, 3, 3, 3]])}
    separators = tokens_in(batch, [3])
    places = {0: [2, 5], 1: [2]}  # what stands in padding does not count
    expected = []
    for head in range(2):
        ratios = []
        for b, places_of_row in places.items():
            tokens = mask[b].nonzero().flatten().tolist()
            for t in tokens:
                order = sorted(tokens, key=lambda key: -float(student[b, head, t, key]))
                ratios += [(order.index(place) + 1) / len(tokens) for place in places_of_row]
        expected.append(sum(ratios) / len(ratios))
    assert rank_ratio(student, mask, separators) == pytest.approx(expected)
    assert rank_ratio(student, mask, tokens_in(batch, [2])) == rank_ratio(student, mask, 0)
    with pytest.raises(ConfigError, match="none of the tokens to look at is in the batch"):
        rank_ratio(student, mask, tokens_in(batch, [50]))
    with pytest.raises(ConfigError, match="there is no token 6 in texts of 6"):
        rank_ratio(student, mask, 6)


def test_comparisons_of_models(models):
    teacher, student = models
    batch = zoo.inputs_for("bert")
    implementation = teacher.config._attn_implementation
    found = compare_ranking(teacher, {"itself": teacher, "quantized": student}, batch, k=2)
    assert is_picture(found.figure)
    assert found.data["itself"]["ranking_loss"] == [[0] * 4] * 3
    assert all(value > 0 for heads in found.data["quantized"]["ranking_loss"] for value in heads)
    own, other = (torch.tensor(found.data[name]["cover_length_ratio"]) for name in ("itself", "quantized"))
    assert own.shape == (3, 4)
    assert (own < other).all()
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
    largest = max(loud.data.ratio)
    unsure = detect_case(model, batch, special, limit=1.1 * largest)
    assert (unsure.data.case, unsure.data.suggestion) == (None, "map+output")
    assert "cannot be told" in unsure.figure.title
    assert detect_case(model, batch, special, limit=2 * largest).data.case == 2


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_distances_from_the_teacher(family):
    teacher = zoo.build(family)
    student = quantize_numbers(copy.deepcopy(teacher), QuantizeConfig(activations="none", embedding="float"))
    batch = zoo.inputs_for(family)
    found = attention_distances(teacher, {"itself": teacher, "quantized": student}, batch)
    assert is_picture(found.figure)
    assert found.data["itself"] == {"sa_gen": [0, 0, 0], "sa_prop": [0, 0, 0]}
    assert all(value > 0 for value in found.data["quantized"]["sa_gen"])
    # One token that is attended to, by itself.
    first = attention_distances(teacher, {"quantized": student}, batch, token=0).data["quantized"]
    counts = batch["attention_mask"].bool()
    starts = counts[:, 0]
    maps = [attention_maps(model, batch)[1] for model in (teacher, student)]
    apart = (maps[0] - maps[1]).square()[..., 0].transpose(1, 2)[counts & starts[:, None]].mean()
    assert first["sa_gen"][1] == pytest.approx(float(apart), rel=1e-5)
    assert first["sa_prop"] != found.data["quantized"]["sa_prop"]
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
    base = headed(tmp_path / "base", hf.BertForSequenceClassification, id2label={0: "no", 1: "yes"})
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
    betas = beta_sweep(config, (0.1, 0.9))
    assert is_picture(betas.figure)
    assert [(row["kd"], row["value"]) for row in betas.data] == [
        *(("map+output", beta) for beta in (0.1, 0.9)),
        *(("output+map", beta) for beta in (0.1, 0.9)),
    ]


@pytest.mark.parametrize("blocks", [1, 2, 6, 12, 24])
def test_swept_blocks_are_spread_over_the_whole_depth(blocks):
    for count in range(1, blocks + 1):
        chosen = spaced_blocks(count, blocks)
        assert len(set(chosen)) == count
        assert chosen[-1] == blocks - 1
        gaps = [other - one for one, other in pairwise([-1, *chosen])]
        assert max(gaps) - min(gaps) <= 1
    with pytest.raises(ConfigError, match=rf"give 1 to {blocks}"):
        spaced_blocks(blocks + 1, blocks)


def test_betas_are_those_of_the_paper():
    assert BETAS == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
