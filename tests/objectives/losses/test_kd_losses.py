"""Losses of knowledge-distilled quantization against the reference implementation (golden file 03)."""

from __future__ import annotations

import math

import pytest
import torch

from slimformer.errors import ObjectiveError
from slimformer.objectives.losses import (
    attention_map_loss,
    attention_score_loss,
    hidden_state_loss,
    mean_square,
    soft_label_loss,
)


@pytest.fixture(scope="module")
def reference(golden):
    return golden("03_kdqat_losses")


CASES = ["c0", "c1"]


def check(reference, case, name, loss, student=None, gradient=None):
    expected = float(reference[f"{case}.out.{name}_f64"])
    assert float(loss) == pytest.approx(expected, rel=1e-9), name
    if student is not None:
        (made,) = torch.autograd.grad(loss, student)
        wanted = reference[f"{case}.out.{name}.{gradient}_f64"]
        torch.testing.assert_close(made, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max()))


def both(reference, case, name):
    return (
        reference[f"{case}.in.teacher_{name}"].double(),
        reference[f"{case}.in.student_{name}"].double().requires_grad_(),
    )


@pytest.mark.parametrize("case", CASES)
def test_attention_map_golden(reference, case):
    mask = reference[f"{case}.in.attention_mask"]
    teacher, student = both(reference, case, "scores_raw")
    loss = sum(attention_map_loss(t, s, mask) for t, s in zip(teacher, student, strict=True))
    check(reference, case, "map_kl", loss, student, "grad_student_scores")
    # The same from scores that carry their additive mask already.
    teacher, student = both(reference, case, "scores")
    loss = sum(attention_map_loss(t, s, mask) for t, s in zip(teacher, student, strict=True))
    check(reference, case, "map_kl", loss)


@pytest.mark.parametrize("case", CASES)
def test_attention_score_golden(reference, case):
    teacher, student = both(reference, case, "scores")
    loss = sum(attention_score_loss(t, s, None, reference=True) for t, s in zip(teacher, student, strict=True))
    check(reference, case, "score_mse", loss, student, "grad_student_scores")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        ("attn_output", "output_mse"),
        ("hidden", "hidden_mse"),
        ("sa_output", "sa_output_mse"),
        ("context", "context_mse"),
    ],
)
def test_hidden_states_golden(reference, case, tensor, name):
    teacher, student = both(reference, case, tensor)
    loss = sum(hidden_state_loss(t, s) for t, s in zip(teacher, student, strict=True))
    gradient = f"grad_student_{tensor}"
    check(reference, case, name, loss, student, gradient)


@pytest.mark.parametrize("case", CASES)
def test_logits_golden(reference, case):
    teacher, student = both(reference, case, "logits")
    gradient = "grad_student_logits"
    check(reference, case, "logits_soft_ce", soft_label_loss(teacher, student), student, gradient)
    check(reference, case, "logits_mse_regression", mean_square(teacher, student), student, gradient)
    mean = soft_label_loss(teacher, student, mean_over_classes=True)
    check(reference, case, "ternarybert_logits_soft_ce_mean_over_classes", mean, student, gradient)


@pytest.mark.parametrize("case", CASES)
def test_total_golden(reference, case):
    """The sum the paper trains with: soft labels + hidden states + map + beta times output."""
    settings = next(each for each in reference.meta["cases"] if each["prefix"] == case)
    mask = reference[f"{case}.in.attention_mask"]

    def summed(loss, name, *more):
        return sum(loss(t, s, *more) for t, s in zip(*both(reference, case, name), strict=True))

    total = (
        soft_label_loss(*both(reference, case, "logits"))
        + summed(hidden_state_loss, "hidden")
        + settings["map_coeff"] * summed(attention_map_loss, "scores_raw", mask)
        + settings["output_coeff"] * summed(hidden_state_loss, "attn_output")
    )
    assert float(total) == pytest.approx(float(reference[f"{case}.out.total_f64"]), rel=1e-9)


def slow_map_loss(teacher, student, mask, temperature, causal):
    sentences = []
    for b in range(len(mask)):
        keep = mask[b].nonzero().flatten().tolist()
        for head in range(teacher.shape[1]):
            total = 0.0
            for t in keep:
                seen = [k for k in keep if not causal or k <= t]
                p = (teacher[b, head, t, seen] / temperature).softmax(-1)
                q = (student[b, head, t, seen] / temperature).softmax(-1)
                total += float((p * (p.log() - q.log())).sum())
            sentences.append(total / len(keep))
    return temperature**2 * sum(sentences) / len(sentences)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_map_loss_equals_the_slow_version_on_either_padding(causal, temperature):
    teacher, student = torch.randn(3, 2, 5, 5).double(), torch.randn(3, 2, 5, 5).double()
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    made = attention_map_loss(teacher, student, mask, temperature, causal)
    assert float(made) == pytest.approx(slow_map_loss(teacher, student, mask, temperature, causal), rel=1e-10)


def test_a_temperature_changes_the_shape_of_the_map_loss_and_not_its_strength():
    torch.manual_seed(0)
    teacher, scores = torch.randn(2, 2, 4, 6, 6).double()
    strengths = []
    for temperature in (1.0, 5.0, 20.0, 100.0):
        student = scores.clone().requires_grad_()
        attention_map_loss(teacher, student, None, temperature).backward()
        strengths.append(float(student.grad.norm()))
    assert max(strengths) < 1.5 * min(strengths)
    assert strengths[-1] == pytest.approx(strengths[-2], rel=0.1)  # of very soft maps only the scores' differences stay


def test_padding_may_hold_anything():
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    teacher, student = torch.randn(2, 2, 3, 3), torch.randn(2, 2, 3, 3)
    spoiled = student.clone()
    spoiled[0, :, 2], spoiled[1, :, 0] = -math.inf, math.nan
    spoiled.requires_grad_()
    loss = attention_map_loss(teacher, spoiled, mask)
    loss.backward()
    assert torch.equal(loss, attention_map_loss(teacher, student, mask))
    assert torch.isfinite(spoiled.grad).all()
    hidden = torch.randn(2, 3, 4)
    worse = hidden.clone()
    worse[0, 2] = math.inf
    worse.requires_grad_()
    hidden_state_loss(torch.zeros(2, 3, 4), worse, mask).backward()
    assert torch.isfinite(worse.grad).all()
    made = float(hidden_state_loss(torch.zeros(2, 3, 4), worse, mask))
    assert made == pytest.approx(float(hidden[mask.bool()].square().mean()), rel=1e-6)


def test_scores_are_compared_where_both_tokens_count():
    mask = torch.tensor([[1, 1, 0]])
    teacher, student = torch.zeros(1, 1, 3, 3), torch.full((1, 1, 3, 3), 100.0)
    student[:, :, :2, :2] = 2.0
    assert float(attention_score_loss(teacher, student, mask)) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: attention_map_loss(torch.zeros(1, 2, 3, 3), torch.zeros(1, 4, 3, 3), None), "the same heads"),
        (lambda: attention_map_loss(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3), torch.ones(1, 2)), "the mask is"),
        (lambda: attention_map_loss(*[torch.zeros(1, 2, 3, 3)] * 2, None, temperature=0), "`temperature` is 0"),
        (lambda: hidden_state_loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4)), "shapes must agree"),
        (lambda: soft_label_loss(torch.zeros(1, 2), torch.zeros(1, 3)), "both need the same classes"),
        (lambda: soft_label_loss(torch.zeros(1, 2), torch.zeros(1, 2), temperature=-1), "`temperature` is -1"),
    ],
)
def test_impossible_settings_are_named(wrong, message):
    with pytest.raises(ObjectiveError, match=message):
        wrong()
