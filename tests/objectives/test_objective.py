"""An objective as a sum of terms: its gradient, its forwards, and its parts over accumulation steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer import Anatomy
from slimformer.errors import ConfigError
from slimformer.objectives import RecordedStudent, Teacher, TermObjective, parse_terms
from tests.objectives.batches import TERMS, batch, build, furthest, gradients

EACH = [(family, spec.label) for family, terms in TERMS.items() for spec in parse_terms(terms)]


@st.composite
def objectives(draw):
    """A family and some of its terms, weighted."""
    family = draw(st.sampled_from(sorted(TERMS)))
    labels = [spec.label for spec in parse_terms(TERMS[family])]
    chosen = draw(st.lists(st.sampled_from(labels), min_size=1, max_size=5, unique=True))
    return family, {label: draw(st.floats(0.01, 10)) for label in chosen}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(objectives())
def test_the_gradient_of_a_sum_is_the_weighted_sum_of_the_gradients(drawn):
    family, weights = drawn
    inputs = batch(family)
    objective, student = build(family, ", ".join(f"{label}:{weight!r}" for label, weight in weights.items()))
    loss = objective(student, inputs)
    loss.total.backward()
    whole = gradients(student)
    total, summed = 0.0, {name: torch.zeros_like(value) for name, value in whole.items()}
    for index, each in enumerate(objective.terms):
        alone = TermObjective([each], student.model, objective.sources)
        single = RecordedStudent(student.model, [each]).double().eval()
        single.maps["0"].load_state_dict(student.maps[str(index)].state_dict())
        part = alone(single, inputs).total  # weighted as in the sum
        part.backward()
        total += float(part.detach())
        for name, value in gradients(single).items():
            at = name.replace("maps.0.", f"maps.{index}.")
            summed[at] += value
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-6)
    assert furthest(whole, summed) < 1e-6


@pytest.mark.parametrize(("family", "term"), EACH)
def test_parts_of_a_batch_add_up_to_the_whole(family, term):
    """What accumulation does: parts of different sizes, whose tokens and labels are not alike."""
    inputs = batch(family)
    objective, student = build(family, f"{term}:0.7")
    whole = objective(student, inputs)
    whole.total.backward()
    expected = gradients(student)
    parts = [{name: value[rows] for name, value in inputs.items()} for rows in (slice(0, 3), slice(3, 8))]
    counts = [objective.counts(part) for part in parts]
    assert {name: sum(count[name] for count in counts) for name in counts[0]} == objective.counts(inputs)
    total = 0.0
    for part in parts:
        loss = objective(student, part, objective.counts(inputs))  # the sum of the part over the count of the whole
        loss.total.backward()
        total += float(loss.total.detach())
    # Some heads compute in float32 whatever the model does.
    assert total == pytest.approx(float(whole.total.detach()), rel=1e-6)
    assert furthest(expected, gradients(student)) < 1e-6


def test_a_part_without_any_label_has_no_say():
    objective, student = build("xlm-roberta", "mlm, logits, labels")
    inputs = batch("xlm-roberta")
    alone = {name: value[2:3] for name, value in inputs.items()}
    assert {name: count for name, count in objective.counts(alone).items() if name in ("mlm", "logits")} == {
        "mlm": 0,
        "logits": 0,
    }
    objective, student = build("xlm-roberta", "mlm, logits")
    loss = objective(student, alone, objective.counts(inputs))
    assert float(loss.total.detach()) == 0
    loss.total.backward()  # still in the graph: distributed training waits for every weight
    assert student.model.lm_head.dense.weight.grad is not None


def test_all_terms_share_one_forward_of_each_model():
    objective, student = build("gpt2", "relations, hidden[all], logits, attention-maps[all], labels, pooled")
    calls = {"teacher": 0, "student": 0}
    for name, model in (("teacher", objective.sources["teacher"].model), ("student", student.model)):
        Anatomy.of(model).base.register_forward_pre_hook(lambda *_, name=name: calls.__setitem__(name, calls[name] + 1))
    objective(student, batch("gpt2"))
    assert calls == {"teacher": 1, "student": 1}
    objective, student = build("xlm-roberta", "relations, mlm")
    seen = []
    for name, model in (("teacher", objective.sources["teacher"].model), ("student", student.model)):
        Anatomy.of(model).base.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: seen.append((name, [*args, *kwargs.values()][0])), with_kwargs=True
        )
    inputs = batch("xlm-roberta")
    objective(student, inputs)
    assert [name for name, _ in seen] == ["teacher", "student", "student"]
    assert torch.equal(seen[1][1], inputs["input_ids"])
    assert torch.equal(seen[2][1], inputs["masked.input_ids"])


def test_a_model_runs_only_as_far_as_its_terms_look():
    """Relations of the last block and outputs of the first: the rest of the last block is not computed."""
    objective, student = build("xlm-roberta", "relations, hidden[embeddings,0]")
    called = []
    for name, model in (("teacher", objective.sources["teacher"].model), ("student", student.model)):
        for block in Anatomy.of(model).blocks:
            at = f"{name} {block.index}"
            block.down.module.register_forward_hook(lambda *_, at=at: called.append(at))
        model.lm_head.register_forward_hook(lambda *_: called.append("head"))
    objective(student, batch("xlm-roberta"))
    # The student's first block is compared with the teacher's second of three.
    assert called == ["teacher 0", "teacher 1", "student 0"]


def test_a_term_may_learn_from_another_source():
    """Room for a teacher that is the student itself: a source sees the model that is trained."""

    class Own(Teacher):
        def __call__(self, model, inputs, request):
            asked.append(model)
            return super().__call__(model, inputs, request)

    asked = []
    objective, student = build("bert", "hidden")
    (each,) = objective.terms
    each.term.source = "largest"
    with pytest.raises(ConfigError, match="term `hidden` learns from `largest`, and there is teacher"):
        TermObjective([each], student.model, objective.sources)
    other = TermObjective([each], student.model, {"largest": Own(objective.sources["teacher"].model)})
    assert float(other(student, batch("bert")).total.detach()) > 0
    assert asked == [student]


def test_a_student_without_maps_may_be_called_as_it_is():
    objective, student = build("gpt2", "logits, labels, attention-maps[all]")
    inputs = {name: value for name, value in batch("gpt2").items() if "." not in name}
    wrapped, plain = objective(student, inputs), objective(student.model, inputs)
    assert torch.equal(wrapped.total, plain.total)
    assert wrapped.parts.keys() == {"soft_labels", "labels", "map"}
