"""What a student learns, and that nothing more is computed for it."""

from __future__ import annotations

import pytest
import torch

from slimformer import Anatomy
from slimformer.anatomy import family_of
from slimformer.errors import ConfigError, ObjectiveError
from slimformer.methods.distill import StudentShape
from slimformer.methods.distill.learning import freeze_unused
from slimformer.methods.distill.student import build_student, pass_through
from slimformer.objectives import Models, RecordedStudent, Teacher, TermObjective, Weighted, build_terms, parse_terms
from slimformer.objectives.recording import Recorder, Request, pool
from slimformer.objectives.terms.hidden import HiddenStates
from slimformer.objectives.terms.pooled import Isometry, Pooled
from slimformer.objectives.terms.predictions import SoftLabels
from slimformer.objectives.terms.relations import MapsAndValues, Relations
from tests import zoo
from tests.objectives.batches import batch as masked_batch

SMALL = StudentShape(layers=2, hidden=24, heads=4)


def join(teacher, student, *terms, layer=1):
    """An objective of some terms (weight, class, options), and the student it is for."""
    models = Models(Anatomy.of(student), Anatomy.of(teacher), ((len(Anatomy.of(student).blocks) - 1, layer),))
    weighted = [Weighted(kind.__name__, weight, kind.of(models, **options)) for weight, kind, options in terms]
    return TermObjective(weighted, student, {"teacher": Teacher(teacher)}), RecordedStudent(student, weighted)


def pair(family, kind, **options):
    teacher = zoo.build(family)
    return join(teacher, build_student(teacher, SMALL), (1.0, kind, options))


def relations(family):
    return {"heads": 4 if family not in ("gemma",) else 2}


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_only_what_the_relations_reach_is_trained(family):
    objective, student = pair(family, Relations, **relations(family))
    idle = freeze_unused(student, objective, zoo.inputs_for(family))
    block = Anatomy.of(student.model).blocks[-1]
    for matrix in (block.output, block.up, block.down):
        assert not matrix.module.weight.requires_grad
    for matrix in (block.query, block.key, block.value, Anatomy.of(student.model).blocks[0].down):
        assert matrix.module.weight.requires_grad
    assert all(parameter.grad is None for parameter in student.parameters())
    objective(student, zoo.inputs_for(family)).total.backward()
    for name, parameter in student.named_parameters():
        assert (parameter.grad is None) == (name in idle), name


@pytest.mark.parametrize("family", ["bert", "llama", "vit"])
def test_nothing_after_the_projections_runs(family):
    objective, student = pair(family, Relations, **relations(family))
    called = []
    for model, layer in ((objective.sources["teacher"].model, 1), (student.model, -1)):
        blocks = Anatomy.of(model).blocks
        blocks[layer].down.module.register_forward_hook(lambda *_: called.append("down"))
        if layer == 1:
            blocks[2].query.module.register_forward_hook(lambda *_: called.append("next block"))
    loss = objective(student, zoo.inputs_for(family))
    assert loss.total.requires_grad
    assert called == []


@pytest.mark.parametrize("family", [name for name in zoo.FAMILIES if family_of(name).query_norm is not None])
@pytest.mark.parametrize("role", ["query", "key"])
@pytest.mark.parametrize("scale", [0.25, 8.0])
def test_what_a_norm_of_queries_or_keys_undoes_changes_no_relation(family, role, scale):
    """The model answers the same, so there is nothing else to learn from it, and nothing else to teach it."""
    teacher, inputs = zoo.build(family), zoo.inputs_for(family)
    student = zoo.enliven(build_student(teacher, SMALL)).eval()
    pairs = {"heads": 4, "pairs": ("qq", "kk", "vv", "kv")}
    objective, recorded = join(teacher, student, (1.0, Relations, pairs))
    with torch.no_grad():
        before = [model(**inputs)[0] for model in (teacher, student)], objective(recorded, inputs)
        for block in (*Anatomy.of(teacher).blocks, *Anatomy.of(student).blocks):
            getattr(block, role).module.weight.mul_(scale)
        after = [model(**inputs)[0] for model in (teacher, student)], objective(recorded, inputs)
    torch.testing.assert_close(after[0], before[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(after[1].parts, before[1].parts, rtol=1e-3, atol=1e-5)


def test_a_student_like_its_teacher_has_nothing_to_learn():
    teacher = zoo.build("bert")
    student = build_student(teacher, StudentShape(start="truncate")).eval()
    terms = [(1.0, Relations, {"heads": 4}), (0.5, MapsAndValues, {}), (1.0, HiddenStates, {}), (2.0, Pooled, {})]
    objective, recorded = join(teacher, student, *terms, layer=2)
    loss = objective(recorded, zoo.inputs_for("bert"))
    assert loss.total.item() == pytest.approx(0, abs=1e-5)
    assert set(loss.parts) == {"qq", "kk", "vv", "map", "MapsAndValues.vv", "hidden", "pooled"}


def test_total_is_the_weighted_sum():
    teacher, inputs = zoo.build("bert"), zoo.inputs_for("bert")
    student = build_student(teacher, SMALL).eval()
    terms = [(2.0, Relations, {"heads": 4, "pairs": ("qk", "vv")}), (3.0, Pooled, {})]
    objective, recorded = join(teacher, student, *terms)
    loss = objective(recorded, inputs)
    expected = 2 * (loss.parts["qk"] + loss.parts["vv"]) + 3 * loss.parts["pooled"]
    torch.testing.assert_close(loss.total, expected)


def test_minilm_v1_is_the_attention_map_and_the_value_relation():
    teacher, inputs = zoo.build("bert"), zoo.inputs_for("bert")
    objective, student = pair("bert", MapsAndValues)
    loss = objective(student.eval(), inputs)
    # A plain attention map is the relation of queries to keys with as many relation heads as attention heads.
    other, recorded = join(teacher, student.model, (1.0, Relations, {"heads": 4, "pairs": ("qk", "vv")}))
    torch.testing.assert_close(loss.total, other(recorded, inputs).total, rtol=1e-4, atol=1e-6)


def test_minilm_v1_needs_the_same_heads():
    teacher, student = zoo.build("bert"), build_student(zoo.build("bert"), StudentShape(heads=2))
    with pytest.raises(ConfigError, match="has 2 where the teacher has 4"):
        join(teacher, student, (1.0, MapsAndValues, {}))


def test_relation_heads_that_do_not_fit_are_refused_with_those_that_do():
    teacher, student = zoo.build("bert"), build_student(zoo.build("bert"), SMALL)
    with pytest.raises(ObjectiveError, match="does not divide the student's width 24; choose from 1, 2, 3, 4, 6"):
        join(teacher, student, (1.0, Relations, {"heads": 16, "pairs": ("qq",)}))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_matrix_of_pooled_embeddings_keeps_similarities(pooling):
    student, matrix = build_student(zoo.build("bert"), SMALL).eval(), Isometry(24, 48)
    with torch.no_grad():
        matrix.free.mul_(0.9).add_(torch.randn_like(matrix.free))  # whatever training does to it
        own = Recorder(student, Request.of((), (), f"pooled.{pooling}"))(zoo.inputs_for("bert"))[f"pooled.{pooling}"]
        mapped = matrix(own)
    assert mapped.shape[-1] == 48
    torch.testing.assert_close(mapped @ mapped.T, own @ own.T, rtol=1e-4, atol=1e-5)


def test_pooling_skips_padding_on_either_side():
    hidden = torch.arange(12.0).reshape(2, 3, 2)
    left = torch.tensor([[0, 1, 1], [1, 1, 1]])
    assert pool(hidden, left, "cls").tolist() == [[2, 3], [6, 7]]
    assert pool(hidden, left, "mean").tolist() == [[3, 4], [8, 9]]
    assert pool(hidden, None, "cls").tolist() == [[0, 1], [6, 7]]


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlm-roberta"])
def test_soft_labels_leave_padding_out(family):
    teacher = zoo.build_headed(family)
    student = build_student(teacher, SMALL).eval()
    assert type(student) is type(teacher)
    objective, recorded = join(teacher, student, (1.0, SoftLabels, {"temperature": 2.0}))
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 8, 7, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    }
    whole = objective(recorded, inputs).total
    rows = []
    for length, row in ((4, 0), (3, 1)):
        alone = {name: value[row : row + 1, :length] for name, value in inputs.items()}
        theirs, ours = teacher(**alone).logits, student(**alone).logits
        rows.append(-((theirs / 2).softmax(-1) * (ours / 2).log_softmax(-1)).sum(-1).mean())
    torch.testing.assert_close(whole, sum(rows) / 2, rtol=1e-4, atol=1e-5)


def test_pooling_of_several_ways_is_learned_by_a_narrower_student():
    """Each way's vector goes through the one matrix, so that the student's own similarities are those learned."""
    teacher, inputs = zoo.build("bert"), zoo.inputs_for("bert")
    student = build_student(teacher, SMALL).eval()
    objective, recorded = join(teacher, student, (1.0, Pooled, {"pooling": "cls+mean"}))
    loss = objective(recorded, inputs).total
    names = [f"pooled.{way}" for way in ("cls", "mean")]
    target, output = (Recorder(model, Request.of((), (), *names))(inputs) for model in (teacher, student))
    matrix = recorded.maps["0"]["isometry"]
    wide, narrow = (torch.cat([each[name] for name in names], dim=-1) for each in (target, output))
    mapped = torch.cat([matrix(output[name]) for name in names], dim=-1)
    assert mapped.shape == wide.shape == (3, 96)
    torch.testing.assert_close(loss, 1 - torch.cosine_similarity(wide, mapped).mean())
    torch.testing.assert_close(mapped @ mapped.T, narrow @ narrow.T, rtol=1e-4, atol=1e-5)
    loss.backward()
    assert matrix.free.grad.abs().sum() > 0


@pytest.mark.parametrize("family", ["xlm-roberta", "modernbert"])
def test_soft_labels_of_masked_tokens_are_taken_under_masks_that_both_models_see(family):
    teacher = zoo.build_headed(family)
    student = zoo.enliven(build_student(teacher, SMALL)).eval()
    models = Models(Anatomy.of(student), Anatomy.of(teacher), ((1, 1),))
    terms = build_terms(parse_terms("logits[temperature=2]"), models, variants=("clean", "masked"))
    batch = {name: value for name, value in masked_batch(family).items() if name != "labels"}
    seen = []
    for model in (teacher, student):
        model.register_forward_pre_hook(lambda _, args, inputs: seen.append(inputs["input_ids"]), with_kwargs=True)
    loss = TermObjective(terms, student, {"teacher": Teacher(teacher)})(RecordedStudent(student, terms).eval(), batch)
    assert [torch.equal(each, batch["masked.input_ids"]) for each in seen] == [True, True]

    inputs = {"input_ids": batch["masked.input_ids"], "attention_mask": batch["attention_mask"]}
    chosen = batch["masked.labels"] != -100
    target, output = (model(**inputs).logits[chosen] / 2 for model in (teacher, student))
    expected = -(target.softmax(-1) * output.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "vit", "gpt_neox"])
def test_a_block_that_passes_through_adds_nothing(family):
    model = zoo.build(family)
    anatomy = Anatomy.of(model)
    pass_through(anatomy.blocks[-1])
    block = anatomy.blocks[-1].module
    seen = {}
    block.register_forward_pre_hook(
        lambda _, args, kwargs: seen.update(given=(args or [*kwargs.values()])[0]), with_kwargs=True
    )
    block.register_forward_hook(
        lambda _, args, output: seen.update(made=output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        model(**zoo.inputs_for(family))
    given, made = seen["given"], seen["made"]
    if not anatomy.family.pre_norm:  # norms follow: the direction stays
        given, made = (value - value.mean(-1, keepdim=True) for value in (given, made))
        given, made = (torch.nn.functional.normalize(value, dim=-1) for value in (given, made))
        torch.testing.assert_close((given * made).sum(-1).min(), torch.tensor(1.0), rtol=0.2, atol=0.2)
    else:
        torch.testing.assert_close(given, made)
