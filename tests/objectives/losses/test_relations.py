"""Relation distillation against the reference implementation (golden files 01 and 08) and a slow, obvious version."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertModel

from slimformer import Taps
from slimformer.errors import ObjectiveError
from slimformer.objectives.losses import ALL_PAIRS, relation_loss, relations
from tests.conftest import ROOT

LETTERS = {1: "q", 2: "k", 3: "v"}


def pairs_of(case):
    return ["".join(LETTERS[number] for number in pair) for pair in case["pairs"]]


def slow(teacher, student, mask, heads, pairs, weights, causal=False):
    """Sentence by sentence, head by head, row by row."""
    parts = {}
    for pair in pairs:
        sentences = []
        for b in range(len(mask)):
            keep = mask[b].nonzero().flatten()
            total = 0
            for head in range(heads):
                rows = []
                for tensors in (teacher, student):
                    m, n = (tensors[name][b, keep].chunk(heads, dim=-1)[head] for name in pair)
                    rows.append(m @ n.T / math.sqrt(m.shape[-1]))
                for t in range(len(keep)):
                    seen = t + 1 if causal else len(keep)
                    p, q = (scores[t, :seen].log_softmax(-1) for scores in rows)
                    total = total + (p.exp() * (p - q)).sum()
            sentences.append(total / (heads * len(keep)))
        parts[pair] = torch.stack(sentences).mean()
    return sum(weight * part for weight, part in zip(weights, parts.values(), strict=True)), parts


def rolled(tensor, mask):
    """The same sentences with their padding on the left."""
    return torch.stack([row.roll(int((keep == 0).sum()), 0) for row, keep in zip(tensor, mask, strict=True)])


@pytest.fixture(scope="module")
def reference(golden):
    return golden("01_minilmv2_relation_loss")


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("dtype", "loss_tolerance", "grad_tolerance"), [(torch.float64, 1e-9, 1e-9), (torch.float32, 1e-5, 1e-4)]
)
def test_golden(reference, number, side, dtype, loss_tolerance, grad_tolerance):
    case = reference.meta["cases"][number]
    mask = reference[f"{case['inputs']}.in.attention_mask"]

    def load(who, name):
        tensor = reference[f"{case['inputs']}.in.{who}_{name}"].to(dtype)
        return rolled(tensor, mask) if side == "left" else tensor

    teacher = {name: load("teacher", name) for name in "qkv"}
    student = {name: load("student", name).requires_grad_() for name in "qkv"}
    shown = rolled(mask, mask) if side == "left" else mask
    total, parts = relation_loss(teacher, student, shown, case["A_r"], pairs_of(case), case["weights"])
    total.backward()
    expected = float(reference[f"{case['prefix']}.out.loss_f64"])
    assert float(total) == pytest.approx(expected, rel=loss_tolerance)
    each = reference[f"{case['prefix']}.out.per_relation_f64"].tolist()
    assert [float(part) for part in parts.values()] == pytest.approx(each, rel=loss_tolerance)
    for name in {letter for pair in pairs_of(case) for letter in pair}:
        wanted = reference[f"{case['prefix']}.out.grad_student_{name}_f64"]
        wanted = (rolled(wanted, mask) if side == "left" else wanted).to(dtype)
        torch.testing.assert_close(student[name].grad, wanted, rtol=0, atol=grad_tolerance * float(wanted.abs().max()))


@pytest.mark.parametrize("number", range(4))
def test_whole_models_golden(golden, number):
    """Through taps on real modules, down to the gradient of every parameter."""
    reference = golden("08_whole_model")
    case = reference.meta["cases"][number]
    folder = ROOT / "tests" / "golden" / "08_whole_model"
    teacher, student = (BertModel.from_pretrained(folder / who).double().train() for who in ("teacher", "student"))
    inputs = {name: reference[f"in.{name}"] for name in ("input_ids", "attention_mask", "token_type_ids")}
    taken = []
    for model, layer in ((teacher, case["teacher_layer"]), (student, case["student_layer"])):
        with Taps(model, layer - 1) as taps:
            record = taps.run(**inputs)[layer - 1]
            taken.append({name: getattr(record, name) for name in "qkv"})
    total, parts = relation_loss(*taken, inputs["attention_mask"], case["A_r"], pairs_of(case), case["weights"])
    assert float(total) == pytest.approx(float(reference[f"{case['prefix']}.out.loss_f64"]), rel=1e-9)
    each = reference[f"{case['prefix']}.out.per_relation_f64"].tolist()
    assert [float(part) for part in parts.values()] == pytest.approx(each, rel=1e-9)
    total.backward()
    compared = 0
    without = set(case["student_params_without_gradient"])
    for name, parameter in student.named_parameters():
        if name in without:
            assert parameter.grad is None or not parameter.grad.any(), name
            continue
        key = f"{case['prefix']}.out.grad.{name}"
        if key not in reference:  # the first case has all of them, the others a selection
            continue
        wanted = reference[key]
        compared += 1
        limit = 1e-7 * float(wanted.abs().max()) + 1e-15
        torch.testing.assert_close(parameter.grad, wanted, rtol=0, atol=limit, msg=name)
    assert compared >= 2
    assert all(parameter.grad is None for parameter in teacher.parameters())


@given(
    seed=st.integers(0, 9999),
    heads=st.sampled_from([1, 2, 3, 6]),
    causal=st.booleans(),
    chunk=st.sampled_from([1, 40, 1 << 24]),
    count=st.integers(1, 9),
)
@settings(max_examples=40, deadline=None)
def test_equals_the_slow_version(seed, heads, causal, chunk, count):
    torch.manual_seed(seed)
    batch, length = 3, 5
    mask = torch.zeros(batch, length, dtype=torch.long)
    for row in range(batch):
        begin = int(torch.randint(0, length, ()))
        mask[row, begin : int(torch.randint(begin + 1, length + 1, ()))] = 1
    pairs = ALL_PAIRS[:count]
    weights = torch.rand(count).tolist()
    teacher = {name: torch.randn(batch, length, 12, dtype=torch.float64) for name in "qkv"}
    student = {name: torch.randn(batch, length, 6, dtype=torch.float64, requires_grad=True) for name in "qkv"}
    before, relations.CPU_CHUNK = relations.CPU_CHUNK, chunk
    try:
        total, parts = relation_loss(teacher, student, mask, heads, pairs, weights, causal=causal)
    finally:
        relations.CPU_CHUNK = before
    expected, each = slow(teacher, student, mask, heads, pairs, weights, causal)
    assert float(total) == pytest.approx(float(expected), rel=1e-10, abs=1e-12)
    assert [float(part) for part in parts.values()] == pytest.approx([float(e) for e in each.values()], abs=1e-12)
    used = [student[name] for name in sorted({name for pair in pairs for name in pair})]
    ours = torch.autograd.grad(total * 2, used)
    theirs = torch.autograd.grad(expected * 2, used)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_what_padding_holds_does_not_matter():
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    teacher = {name: torch.randn(2, 5, 8) for name in "qkv"}
    student = {name: torch.randn(2, 5, 4) for name in "qkv"}
    spoiled = {name: value.masked_fill(mask[..., None] == 0, 1e30) for name, value in student.items()}
    plain, _ = relation_loss(teacher, student, mask, 4)
    assert torch.equal(plain, relation_loss(teacher, spoiled, mask, 4)[0])


def test_equal_relations_cost_nothing_and_an_empty_sentence_is_harmless():
    same = {name: torch.randn(2, 4, 8) for name in "qkv"}
    student = {name: value.clone().requires_grad_() for name, value in same.items()}
    total, _ = relation_loss(same, student, torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]), 2, ALL_PAIRS)
    total.backward()
    assert float(total) == pytest.approx(0, abs=1e-6)
    assert all(torch.isfinite(value.grad).all() for value in student.values())


def test_half_precision_is_computed_in_float32():
    mask = torch.ones(2, 6)
    teacher = {name: torch.randn(2, 6, 16).bfloat16() for name in "qkv"}
    student = {name: torch.randn(2, 6, 8).bfloat16().requires_grad_() for name in "qkv"}
    total, _ = relation_loss(teacher, student, mask, 4)
    exact, _ = relation_loss(
        {n: t.double() for n, t in teacher.items()}, {n: t.double() for n, t in student.items()}, mask, 4
    )
    total.backward()
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(float(exact), rel=1e-5)
    assert student["q"].grad.dtype == torch.bfloat16


def test_memory_stays_within_a_chunk():
    """Nothing of the size of all heads' scores is kept for the backward pass."""
    length, heads = 32, 48
    teacher = {name: torch.randn(4, length, 96) for name in "qkv"}
    student = {name: torch.randn(4, length, 48, requires_grad=True) for name in "qkv"}
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        relation_loss(teacher, student, None, heads, ALL_PAIRS)
    assert max(kept) == 4 * length * 48
    assert sum(kept) <= 4 * 4 * length * 48


Q = torch.zeros(1, 3, 48)
WRONG = [
    (
        {"relation_heads": 5},
        r"`relation_heads` is 5, which does not divide the teacher's width 96; choose from .*, 12, 16, 24, 48$",
    ),
    ({"relation_heads": 32}, r"does not divide the student's width 48"),
    ({"pairs": ("qx",)}, "there is no relation `qx`; choose from qq, qk"),
    ({"pairs": ()}, "0 relations"),
    ({"weights": (1.0,)}, "3 relations and 1 weights"),
    ({"student": {"q": Q, "k": Q}}, "the student has no `v`"),
    ({"student": {"q": Q, "k": Q, "v": Q[:, :, :24]}, "pairs": ("qv",), "relation_heads": 12}, "no relation `qv`"),
    ({"attention_mask": torch.ones(1, 4)}, "batches and lengths differ"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_impossible_settings_are_named(changed, message):
    settings = {
        "teacher": dict.fromkeys("qkv", torch.zeros(1, 3, 96)),
        "student": dict.fromkeys("qkv", Q),
        "attention_mask": None,
        "relation_heads": 12,
        "pairs": ("qq", "kk", "vv"),
    }
    with pytest.raises(ObjectiveError, match=message):
        relation_loss(**{**settings, **changed})
