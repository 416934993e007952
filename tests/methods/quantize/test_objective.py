"""What a quantized student learns from its teacher, on every family and against a slow version."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from slimformer import Anatomy, Taps
from slimformer.errors import ConfigError
from slimformer.methods.quantize.config import QuantizeConfig
from slimformer.methods.quantize.student import give_back, kd_objective, quantize_numbers, take_dropout
from slimformer.objectives import Models, attention_score_loss
from slimformer.objectives.balance import EVERY, NAME, remove_progress
from slimformer.objectives.recording import Recorder, Request
from slimformer.objectives.terms.predictions import SoftLabels
from slimformer.objectives.terms.term import block_pairs
from tests import zoo

HEADED = [family for family in zoo.FAMILIES if family != "vit_mae"]


def pair(family, **settings):
    teacher = zoo.build_headed(family)
    student = copy.deepcopy(teacher)
    quantize_numbers(student, QuantizeConfig(**settings))
    return teacher, student


def objective_for(teacher, student, **settings):
    return kd_objective(teacher, student, QuantizeConfig(**settings))


def batch_for(family, padding="right"):
    inputs = zoo.inputs_for(family, padding)
    if family == "mpnet":  # three texts with two choices each
        inputs = {name: torch.stack([value, value.flip(0)], dim=1) for name, value in inputs.items()}
    return inputs


@pytest.mark.slow
@pytest.mark.parametrize("kd", ["map+output", "output+map", "mha", "score", "hidden"])
@pytest.mark.parametrize("family", HEADED)
def test_every_family_learns(family, kd):
    teacher, student = pair(family)
    if family == "qwen2":  # its head looks for the last token that is not padding
        teacher.config.pad_token_id = student.config.pad_token_id = 0
    objective = objective_for(teacher, student, kd=kd)
    loss = objective(student, batch_for(family))
    assert all(math.isfinite(float(part.detach())) and float(part.detach()) > 0 for part in loss.parts.values())
    loss.total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    for block in Anatomy.of(student).blocks:
        for role, matrix in block.matrices.items():
            gradient = matrix.module.parametrizations.weight.original.grad
            assert gradient is not None, role
            assert torch.isfinite(gradient).all()
            assert gradient.any()


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "llama", "modernbert"])
def test_a_student_that_is_its_teacher_has_nothing_to_learn(family):
    teacher = zoo.build_headed(family)
    student = copy.deepcopy(teacher)
    for kd in ("map+output", "mha", "score"):
        parts = objective_for(teacher, student, kd=kd)(student, batch_for(family)).parts
        for name, part in parts.items():
            assert name == "soft_labels" or float(part.detach()) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("family", ["bert", "llama", "modernbert", "deberta-v2"])
def test_losses_equal_the_slow_version(family, padding):
    """Everything made again from the taps, sentence by sentence and token by token; activations in float."""
    teacher, student = (model.double() for model in pair(family, activations="none", embedding="float"))
    inputs = batch_for(family, padding)
    layers = (0, 2)
    seen = []
    for model in (teacher, student):
        records = ("map", "attention_output", "output", "mha", "scores")
        with torch.no_grad(), Taps(model, layers, records, embeddings=True) as taps:
            model(**inputs)
            seen.append((taps.embeddings, [taps[layer] for layer in layers]))
            for layer in layers:
                assert taps[layer].map is not None
    real = [row.nonzero().flatten().tolist() for row in inputs["attention_mask"]]

    def squares(one, other):
        chosen = [(one[b, t] - other[b, t]).square() for b, tokens in enumerate(real) for t in tokens]
        return float(torch.stack(chosen).mean())

    wanted = {"hidden": squares(seen[0][0], seen[1][0]), "output": 0.0, "map": 0.0, "mha": 0.0}
    for theirs, ours in zip(seen[0][1], seen[1][1], strict=True):
        wanted["hidden"] += squares(theirs.output, ours.output)
        wanted["output"] += squares(theirs.attention_output, ours.attention_output)
        wanted["mha"] += squares(theirs.mha, ours.mha)
        divergences = []
        for b, tokens in enumerate(real):
            for p, q in zip(theirs.map[b], ours.map[b], strict=True):
                rows = [(p[t, k], q[t, k]) for t in tokens for k in tokens if float(p[t, k]) > 0]
                divergences.append(sum(float(x * (x / y).log()) for x, y in rows) / len(tokens))
        wanted["map"] += sum(divergences) / len(divergences)
    made = objective_for(teacher, student, distil_layers="0,2", beta=0.3)(student, inputs)
    mha = objective_for(teacher, student, distil_layers="0,2", kd="mha")(student, inputs).parts["mha"]
    for name in ("hidden", "output", "map"):
        assert float(made.parts[name].detach()) == pytest.approx(wanted[name], rel=1e-6), name
    assert float(mha.detach()) == pytest.approx(wanted["mha"], rel=1e-6)
    expected = sum(float(made.parts[name].detach()) for name in ("soft_labels", "hidden", "map"))
    assert float(made.total.detach()) == pytest.approx(expected + 0.3 * wanted["output"], rel=1e-6)


def test_padding_does_not_change_the_loss_unless_asked():
    teacher, student = (model.double() for model in pair("bert"))
    inputs = zoo.inputs_for("bert")
    longer = {name: nn.functional.pad(value, (0, 5)) for name, value in inputs.items()}
    for reference in (False, True):
        objective = objective_for(teacher, student, reference=reference)
        values = [float(objective(student, each).total.detach()) for each in (inputs, longer)]
        assert (abs(values[0] - values[1]) < 1e-9 * values[0]) == (not reference)


def test_causal_scores_count_only_what_is_seen():
    teacher, student = torch.zeros(1, 1, 3, 3), torch.ones(1, 1, 3, 3).triu(1) * 100
    student[0, 0, 2, 0] = 3.0
    mask = torch.ones(1, 3)
    assert float(attention_score_loss(teacher, student, mask, causal=True)) == pytest.approx(9 / 6)


def test_the_scores_of_a_rounded_student_are_those_it_attends_by():
    """Of rounded queries and keys, not of what the projections gave."""
    student = pair("bert")[1]
    scores = Recorder(student, Request.of([1], ("scores",)), read_scores=True)(zoo.inputs_for("bert"))["1.scores"]
    with torch.no_grad(), Taps(student, "all", ("scores",)) as taps:
        student(**zoo.inputs_for("bert"))
        raw = taps[1].scores
    assert 1e-4 < float((scores.detach() - raw).abs().max()) < 0.5


def test_a_wrapped_student_is_called_through_its_wrapper():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module, self.calls = module, 0

        def forward(self, **inputs):
            self.calls += 1
            return self.module(**inputs)

    teacher, student = pair("bert")
    wrapper = Wrapper(student)
    objective = objective_for(teacher, student)
    one, other = objective(wrapper, zoo.inputs_for("bert")).total, objective(student, zoo.inputs_for("bert")).total
    assert torch.equal(one, other)
    assert wrapper.calls == 1


def test_two_stages_learn_from_layers_and_then_from_logits():
    teacher, student = pair("bert")
    objective = objective_for(teacher, student, stages=2, first_stage=2)
    inputs = zoo.inputs_for("bert")
    for call in range(6):  # two parts of a batch in each step
        objective.begin(call // 2)
        loss = objective(student, inputs)
        student.zero_grad()
        loss.total.backward()
        if call < 4:
            assert not student.classifier.weight.grad.any()  # there, for distributed training, but without a say
            assert "map" in loss.parts
        else:
            assert set(loss.parts) == {"soft_labels"}
            assert student.classifier.weight.grad.any()
    assert not any(NAME in name for name in student.state_dict())  # it has nothing to remember


@pytest.mark.slow
def test_automatic_balance_makes_both_terms_pull_alike():
    teacher, student = pair("bert")
    objective = objective_for(teacher, student, balance="auto")
    inputs = zoo.inputs_for("bert")
    loss = objective(student, inputs)
    pulls = {}
    for term in ("map", "output"):
        gradients = torch.autograd.grad(loss.parts[term], objective.matrices, retain_graph=True, allow_unused=True)
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradients if each is not None))
        pulls[term] = norm * float(loss.parts[f"{term}_weight"])
    assert pulls["map"] == pytest.approx(pulls["output"], rel=1e-4)
    weights = [float(loss.parts[f"{term}_weight"]) for term in ("map", "output")]
    assert weights[0] * weights[1] == pytest.approx(1)
    total = sum(float(loss.parts[name].detach()) for name in ("soft_labels", "hidden"))
    total += sum(w * float(loss.parts[t].detach()) for w, t in zip(weights, ("map", "output"), strict=True))
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-5)
    # The weights stay until the next look, and a run that goes on from saved weights has the same ones.
    with torch.no_grad():
        for matrix in objective.matrices:
            matrix.mul_(1.1)
    parts = objective(student, inputs).parts
    assert [float(parts[f"{term}_weight"]) for term in ("map", "output")] == weights
    twin_teacher, twin = pair("bert")
    resumed = objective_for(twin_teacher, twin, balance="auto")
    twin.load_state_dict(student.state_dict())
    for step in (1, EVERY - 1):
        for each in (objective, resumed):
            each.begin(step)
        ours, theirs = objective(student, inputs), resumed(twin, inputs)
        assert float(ours.parts["map_weight"]) == float(theirs.parts["map_weight"]) == weights[0]
    for each in (objective, resumed):
        each.begin(EVERY)
    ours, theirs = objective(student, inputs), resumed(twin, inputs)
    assert float(ours.parts["map_weight"]) != weights[0]
    assert torch.equal(ours.parts["map_weight"], theirs.parts["map_weight"])
    again = objective(student, inputs)  # of several parts of a batch the first one speaks for all
    assert torch.equal(again.parts["map_weight"], ours.parts["map_weight"])
    remove_progress(twin)
    assert not any(NAME in name for name in twin.state_dict())


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_student_without_dropout_has_none_anywhere(family, monkeypatch):
    build = zoo.CONFIGS[family]

    def with_dropout():
        config = build()
        for name, value in vars(config).items():
            if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
                setattr(config, name, 0.3)
        return config

    monkeypatch.setitem(zoo.CONFIGS, family, with_dropout)
    model = zoo.build(family, "eager").train()
    inputs = zoo.inputs_for(family)
    before = model(**inputs).last_hidden_state
    assert not torch.equal(before, model(**inputs).last_hidden_state)
    taken = take_dropout(model)
    without = model(**inputs).last_hidden_state
    assert torch.equal(without, model(**inputs).last_hidden_state)
    torch.testing.assert_close(without, model.eval()(**inputs).last_hidden_state)
    give_back(taken)
    assert not torch.equal(without, model.train()(**inputs).last_hidden_state)


def test_chosen_layers():
    models = Models(*[Anatomy.of(zoo.build("bert"))] * 2)
    assert block_pairs(["all"], models) == ((0, 0), (1, 1), (2, 2))
    assert block_pairs(["every-2"], models) == ((0, 0), (2, 2))
    assert block_pairs(["-1", "0"], models) == ((0, 0), (2, 2))
    with pytest.raises(ConfigError, match="has 3 blocks"):
        block_pairs(["3"], models)


def cross_entropy(teacher, student):
    return float(-(teacher.softmax(-1) * student.log_softmax(-1)).sum(-1).mean())


def head(family, problem=None, **options):
    """The term on a model with some head, as a function of outputs and batch."""
    model = zoo.build_headed(family)
    model.config.problem_type = problem
    term = SoftLabels.of(Models(Anatomy.of(model)), **options)
    return lambda teacher, student, inputs: term.compare(teacher, student, {"input_ids": torch.zeros(2, 5), **inputs})


def test_predictions_of_every_head():
    one, other = torch.randn(2, 5, 7), torch.randn(2, 5, 7)
    labels = torch.tensor([[3, -100, 2, -100, 1], [-100, -100, -100, 4, -100]])
    tags = labels != -100
    loss = head("roberta")({"logits": one}, {"logits": other}, {"labels": labels})
    assert float(loss.value) == pytest.approx(cross_entropy(one[tags], other[tags]))
    assert loss.count == 4
    # The logits before a label predict it; the first token is predicted by nothing.
    loss = head("gpt2")({"logits": one}, {"logits": other}, {"labels": labels})
    before = tags.roll(-1, dims=1)
    before[:, -1] = False
    assert float(loss.value) == pytest.approx(cross_entropy(one[before], other[before]))
    assert loss.count == 3
    none = head("roberta")({"logits": one}, {"logits": other}, {"labels": torch.full((2, 5), -100)})
    assert (float(none.value), none.count) == (0, 0)
    numbers = {"logits": one[:, :1, 0]}, {"logits": other[:, :1, 0]}
    loss = head("bert", "regression")(*numbers, {"labels": torch.zeros(2)})
    assert float(loss.value) == pytest.approx(float((one - other)[:, 0, 0].square().mean()))
    classes = {"logits": one[:, 0]}, {"logits": other[:, 0]}
    loss = head("bert", mean_over_classes=True)(*classes, {"labels": torch.zeros(2)})
    assert float(loss.value) == pytest.approx(cross_entropy(one[:, 0], other[:, 0]) / 7)
    several = head("bert", "multi_label_classification")(*classes, {"labels": torch.zeros(2, 7)})
    p, q = one[:, 0].sigmoid(), other[:, 0].sigmoid()
    assert float(several.value) == pytest.approx(float(-(p * q.log() + (1 - p) * (1 - q).log()).mean()), rel=1e-5)
    assert several.count == 2
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    spans = [{"start_logits": each[..., 0], "end_logits": each[..., 1]} for each in (one, other)]
    rows = [cross_entropy(one[b, :n, end], other[b, :n, end]) for b, n in ((0, 3), (1, 5)) for end in (0, 1)]
    loss = head("distilbert")(*spans, {"attention_mask": mask})
    assert float(loss.value) == pytest.approx(sum(rows) / 4, rel=1e-5)
