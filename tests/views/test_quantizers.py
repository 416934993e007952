"""Ternary weights and rounded activations against the papers' reference code (golden file 02)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from slimformer.errors import FormatError, RegistryError, ViewError
from slimformer.views import QuantizedView, attach, quantize_activation, quantize_weight

PER = {"layerwise": "matrix", "rowwise": "row", "per_tensor": "tensor", "per_token": "token", "per_head": "head"}


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@pytest.fixture(scope="module")
def reference(golden):
    return golden("02_quantizers")


@pytest.mark.parametrize("case", ["tern0", "tern1", "tern2"])
@pytest.mark.parametrize("mode", ["layerwise", "rowwise"])
def test_ternary_golden(reference, case, mode):
    weight = reference[f"{case}.in.weight"].requires_grad_()
    shown = quantize_weight(weight, "ternary", PER[mode], clip=2.5)
    shown.backward(reference[f"{case}.in.grad_out"])
    close(shown, reference[f"{case}.out.{mode}_weight"])
    assert torch.equal(weight.grad, reference[f"{case}.out.{mode}_grad"])


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        ("act0", "per_tensor"),
        ("act0", "per_token"),
        ("act1", "per_tensor"),
        ("act1", "per_head"),
        ("act2", "per_tensor"),
        ("act2", "per_token"),
        ("act3", "per_tensor"),
        ("act3", "per_token"),
        ("act4", "per_tensor"),
    ],
)
def test_activation_golden(reference, case, mode):
    x = reference[f"{case}.in.x"].requires_grad_()
    y = quantize_activation(x, bits=8, per=PER[mode], clip=2.5, symmetric=case != "act3")
    y.backward(reference[f"{case}.in.grad_out"])
    close(y, reference[f"{case}.out.{mode}_y"])
    assert torch.equal(x.grad, reference[f"{case}.out.{mode}_grad"])


def test_ternary_linear_golden(reference):
    rows, columns = reference["linear.in.weight"].shape
    linear = nn.Linear(columns, rows)
    linear.load_state_dict({"weight": reference["linear.in.weight"], "bias": reference["linear.in.bias"]})
    attach(linear, QuantizedView("ternary", "matrix"))
    x = reference["linear.in.x"].requires_grad_()
    y = linear(quantize_activation(x))
    y.backward(reference["linear.in.grad_out"])
    close(y, reference["linear.out.y"], 1e-5)
    close(x.grad, reference["linear.out.grad_x"], 1e-5)
    close(linear.parametrizations.weight.original.grad, reference["linear.out.grad_weight"], 1e-5)
    close(linear.bias.grad, reference["linear.out.grad_bias"], 1e-5)


def test_ternary_embedding_golden(reference):
    table = nn.Embedding.from_pretrained(reference["embedding.in.weight"], freeze=False)
    attach(table, QuantizedView("ternary", "row"))
    y = table(reference["embedding.in.ids"].long())
    y.backward(reference["embedding.in.grad_out"])
    close(y, reference["embedding.out.y"])
    close(table.parametrizations.weight.original.grad, reference["embedding.out.grad_weight"])


@given(seed=st.integers(0, 2**16), rows=st.integers(1, 6), columns=st.integers(1, 9), scale=st.floats(1e-3, 5))
@settings(max_examples=60, deadline=None)
def test_ternary_by_hand(seed, rows, columns, scale):
    """Each row against the textbook formula, number by number."""
    torch.manual_seed(seed)
    weight = torch.randn(rows, columns, dtype=torch.float64) * scale
    rows_shown = quantize_weight(weight, "ternary", "row").tolist()
    for row, shown in zip(weight.clamp(-2.5, 2.5).tolist(), rows_shown, strict=True):
        limit = 0.7 * sum(abs(w) for w in row) / len(row)
        large = [abs(w) for w in row if abs(w) > limit]
        a = sum(large) / len(large)
        expected = [0.0 if abs(w) <= limit else (a if w > 0 else -a) for w in row]
        assert shown == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("granularity", ["matrix", "row"])
def test_zero_rows_stay_zero_in_every_precision(dtype, granularity):
    weight = torch.randn(4, 6).to(dtype)
    weight[1] = 0
    shown = quantize_weight(weight, "ternary", granularity)
    assert shown.dtype == dtype
    assert torch.isfinite(shown).all()
    assert not shown[1].any()
    assert not quantize_weight(torch.zeros(3, 3, dtype=dtype), "ternary", granularity).any()
    rounded = quantize_activation(weight, per="token")
    assert rounded.dtype == dtype
    assert torch.isfinite(rounded).all()
    assert not rounded[1].any()


def test_codes_and_scales_are_the_ternary_weight():
    weight = torch.randn(5, 7)
    for granularity in ("matrix", "row"):
        codes, scales = QuantizedView("ternary", granularity).codes(weight)
        assert set(codes.unique().tolist()) <= {-1, 0, 1}
        assert torch.equal(codes * scales, quantize_weight(weight, "ternary", granularity))


def test_per_token_ignores_batch_mates_and_per_tensor_does_not():
    x = torch.randn(3, 4, 8) * 0.2
    louder = x.clone()
    louder[1:] *= 2
    assert torch.equal(quantize_activation(x, per="token")[0], quantize_activation(louder, per="token")[0])
    assert not torch.equal(quantize_activation(x)[0], quantize_activation(louder)[0])


def test_without_clip_all_gradient_passes():
    weight = (torch.randn(3, 3) * 10).requires_grad_()
    quantize_weight(weight, "ternary", clip=None).sum().backward()
    assert torch.equal(weight.grad, torch.ones(3, 3))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: quantize_weight(torch.ones(2, 2), "ternary", "column"), FormatError),
        (lambda: QuantizedView("ternary", "token"), FormatError),
        (lambda: QuantizedView("ternery"), RegistryError),
        (lambda: quantize_activation(torch.ones(2), bits=1), ViewError),
        (lambda: quantize_activation(torch.ones(2), per="row"), ViewError),
    ],
)
def test_impossible_settings_are_refused(wrong, error):
    with pytest.raises(error, match="is "):
        wrong()
