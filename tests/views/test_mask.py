"""Masks against the paper's reference code (golden file 04)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slimformer.errors import ViewError
from slimformer.views import MaskView, attach, bake, binarize, magnitude_scores, uniform_scores


@pytest.fixture(scope="module")
def reference(golden):
    return golden("04_maskbert_maskedlinear")


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_masked_linear_golden(reference, case):
    rows, columns = reference[f"{case}.in.weight"].shape
    linear = nn.Linear(columns, rows)
    linear.load_state_dict({"weight": reference[f"{case}.in.weight"], "bias": reference[f"{case}.in.bias"]})
    linear.requires_grad_(False)
    view = MaskView(reference[f"{case}.in.scores"], threshold=0.01)
    attach(linear, view)
    of_bias = None
    if f"{case}.in.bias_scores" in reference:
        of_bias = MaskView(reference[f"{case}.in.bias_scores"], threshold=0.01)
        attach(linear, of_bias, tensor="bias")
    x = reference[f"{case}.in.x"].requires_grad_()
    y = linear(x)
    y.backward(reference[f"{case}.in.grad_out"])
    assert torch.equal(view.binary.detach(), reference[f"{case}.out.binary"].float())
    close(y, reference[f"{case}.out.y"])
    close(view.scores.grad, reference[f"{case}.out.grad_scores"])
    close(x.grad, reference[f"{case}.out.grad_x"])
    if of_bias is not None:
        close(of_bias.scores.grad, reference[f"{case}.out.grad_bias_scores"])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_seeded_scores_golden(reference, number):
    case = reference.meta["cases"][number]
    torch.manual_seed(case["torch_manual_seed_for_init"])
    scores = uniform_scores((case["out"], case["in_"]), case["s"], case["thr"])
    expected = reference[f"{case['prefix']}.out.seeded_reference_init_scores"]
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)


def test_uniform_range_golden(reference):
    for sparsity, threshold, scale, low, high in reference["init.table"].tolist():
        scores = uniform_scores((200_000,), sparsity, threshold, scale)
        assert float(scores.min()) == pytest.approx(low, abs=1e-4 + 1e-5 * (high - low))
        assert float(scores.max()) == pytest.approx(high, abs=1e-4 + 1e-4 * (high - low))
        assert float((scores <= threshold).float().mean()) == pytest.approx(sparsity, abs=5e-3)


@pytest.mark.parametrize("sparsity", ["0.05", "0.3", "0.5", "0.9"])
def test_magnitude_golden(reference, sparsity):
    scores = magnitude_scores(reference["magnitude.in.weight"], float(sparsity))
    torch.testing.assert_close(scores, reference[f"magnitude.out.scores_s{sparsity}"], rtol=0, atol=1e-6)


def test_a_score_on_the_threshold_drops_the_weight():
    scores = torch.tensor([0.01, 0.0100001, 0.0]).requires_grad_()
    bits = binarize(scores, 0.01)
    assert bits.tolist() == [0, 1, 0]
    bits.backward(torch.tensor([3.0, -4.0, 5.0]))
    assert scores.grad.tolist() == [3, -4, 5]


@pytest.mark.parametrize("shape", [(8, 6), (4, 1), (1, 3), (1, 1), (2, 6)])
def test_tiles_equal_the_mask_written_out(shape):
    linear = nn.Linear(6, 8)
    view = MaskView(uniform_scores(shape, 0.5))
    written_out = view.binary.repeat_interleave(8 // shape[0], 0).repeat_interleave(6 // shape[1], 1)
    expected = linear.weight.detach() * written_out
    attach(linear, view)
    assert torch.equal(linear.weight, expected)
    linear(torch.randn(5, 6)).sum().backward()
    assert view.scores.grad.shape == shape
    assert torch.equal(bake(linear).weight, expected)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_short_way_equals_the_long_one(frozen):
    weight = torch.randn(8, 6, requires_grad=not frozen)
    view = MaskView(uniform_scores((8, 6), 0.4))
    gradient = torch.randn(8, 6)
    shown = view(weight)
    shown.backward(gradient)
    expected = weight.detach() * (view.scores.detach() > 0.01)
    assert shown.detach().numpy().tobytes() == expected.numpy().tobytes()
    assert torch.equal(view.scores.grad, gradient * weight.detach())
    assert weight.grad is None if frozen else torch.equal(weight.grad, gradient * (view.scores.detach() > 0.01))


def test_shared_scores_are_one_parameter():
    one, other = nn.Linear(4, 6), nn.Linear(6, 4)
    scores = nn.Parameter(uniform_scores((6,), 0.5))
    attach(one, MaskView(scores), tensor="bias")
    attach(other, MaskView(nn.Parameter(scores.detach()[None])))
    model = nn.Sequential(one, other)
    assert sum(parameter is scores for parameter in model.parameters()) == 1


@pytest.mark.parametrize("shape", [(3, 6), (8, 4), (8,), (16, 6)])
def test_scores_that_do_not_tile_are_refused(shape):
    linear = nn.Linear(6, 8)
    with pytest.raises(ViewError, match=r"do not tile .* of \[8, 6\]"):
        attach(linear, MaskView(torch.zeros(shape)))
    assert not hasattr(linear, "parametrizations")


@pytest.mark.parametrize("sparsity", [0, 1, -0.1, 2])
def test_impossible_sparsity_is_refused(sparsity):
    with pytest.raises(ViewError, match=f"`sparsity` is {sparsity}"):
        uniform_scores((2, 2), sparsity)
    with pytest.raises(ViewError, match=f"`sparsity` is {sparsity}"):
        magnitude_scores(torch.ones(2, 2), sparsity)
