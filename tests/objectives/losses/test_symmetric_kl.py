"""The two-way divergence of predictions against the published code of R3F (golden file 07c) and a slow version."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimformer.errors import ObjectiveError
from slimformer.objectives.losses import symmetric_kl_loss


@pytest.mark.parametrize("case", ["c0", "c1"])
def test_golden(golden, case):
    reference = golden("07c_r3f")
    logits, noised = (reference[f"{case}.in.{name}"].requires_grad_() for name in ("kl_logits", "kl_noised_logits"))
    loss = symmetric_kl_loss(logits, noised)
    loss.backward()
    torch.testing.assert_close(loss.detach(), reference[f"{case}.out.symm_kl_mean"], rtol=1e-5, atol=0)
    for tensor, name in ((logits, "grad_logits"), (noised, "grad_noised_logits")):
        expected = reference[f"{case}.out.symm_kl_mean.{name}"]
        torch.testing.assert_close(tensor.grad, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def slow(one, other):
    total = 0.0
    for row, second in zip(one.double().tolist(), other.double().tolist(), strict=True):
        p, q = ([math.exp(each) / sum(map(math.exp, some)) for each in some] for some in (row, second))
        total += sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True))
    return total / len(one)


@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 2**31))
def test_it_is_both_divergences_and_the_same_both_ways(batch, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(batch, classes, generator=generator) * 3 for _ in range(2))
    loss = symmetric_kl_loss(one, other)
    assert float(loss) == pytest.approx(slow(one, other), rel=1e-4, abs=1e-6)
    assert torch.equal(loss, symmetric_kl_loss(other, one))
    assert float(loss) >= 0
    assert float(symmetric_kl_loss(one, one)) == 0


def test_of_predictions_nearly_alike_digits_are_left():
    """Where two divergences of float32 would cancel to noise: Σ p·d² of a shift that lowers one logit by d."""
    logits = torch.tensor([[0.0, 0.0]])
    loss = symmetric_kl_loss(logits, logits + torch.tensor([[1e-4, 0.0]]))
    assert float(loss) == pytest.approx(0.25 * 1e-8, rel=1e-2)


def test_other_classes_are_refused():
    with pytest.raises(ObjectiveError, match="both need the same classes"):
        symmetric_kl_loss(torch.zeros(2, 3), torch.zeros(2, 2))
