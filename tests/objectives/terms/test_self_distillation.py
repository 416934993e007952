"""Hidden patches and features of the whole input, as terms of one objective (golden file 06 and tiny models)."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf

from slimformer import Anatomy
from slimformer.errors import ConfigError, ObjectiveError
from slimformer.models.autoencoder import as_autoencoder, as_vit, unmasked_features
from slimformer.objectives import (
    Models,
    RecordedStudent,
    Teacher,
    TeacherCache,
    TermObjective,
    build_terms,
    feature_loss,
    parse_terms,
    patch_loss,
)
from slimformer.objectives.recording import Recorder, Request
from tests import zoo
from tests.objectives.batches import furthest, gradients


def join(teacher, student, terms: str, cache: TeacherCache | None = None):
    """An objective of some terms, and the student it is for."""
    models = Models(Anatomy.of(student), None if teacher is None else Anatomy.of(teacher), ((0, 0),))
    built = build_terms(parse_terms(terms), models, variants=("clean", "masked"))
    sources = {} if teacher is None else {"teacher": Teacher(teacher, cache)}
    return TermObjective(built, student, sources), RecordedStudent(student, built).eval()


def image_batch(rows: int = 5) -> dict[str, torch.Tensor]:
    inputs = zoo.inputs_for("vit_mae", batch=rows)
    return {"pixel_values": inputs["pixel_values"], "masked.noise": inputs["noise"]}


@pytest.fixture(scope="module")
def reference(golden):
    return golden("06_self_distillation")


def load(model, reference, prefix: str):
    model.load_state_dict({name: reference[f"{prefix}.{name}"] for name in model.state_dict()})
    return model.eval()


@pytest.mark.parametrize("case", ["mae0", "mae1"])
@pytest.mark.parametrize("of", ["ViT", "autoencoder"])
def test_one_step_golden(reference, case, of):
    """Hidden patches plus [CLS] of all patches, taught by a plain ViT or by the same as an autoencoder."""
    (settings,) = (each for each in reference.meta["cases"] if each["prefix"] == case)
    student = load(hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**settings["config"])), reference, f"{case}.param")
    shared = {name: value for name, value in settings["config"].items() if hasattr(hf.ViTConfig(), name)}
    teacher = hf.ViTModel(hf.ViTConfig(**shared), add_pooling_layer=False)
    teacher = load(teacher, reference, f"{case}.teacher_param")
    teacher = teacher if of == "ViT" else as_autoencoder(teacher)
    batch = {
        "pixel_values": reference[f"{case}.in.pixel_values"],
        "masked.noise": reference[f"{case}.in.noise"],
    }
    objective, recorded = join(teacher, student, "patches, features[first,reduction=sum]")
    loss = objective(recorded, batch)
    for part, name in (("patches", "step_mae_loss"), ("features", "step_distill_loss")):
        assert float(loss.parts[part].detach()) == pytest.approx(float(reference[f"{case}.out.{name}"]), rel=1e-5)
    loss.total.backward()
    compare(reference, f"{case}.out.step_grad", student)

    student.zero_grad(set_to_none=True)
    objective, recorded = join(None, student, "patches")
    objective(recorded, batch).total.backward()
    compare(reference, f"{case}.out.mae_grad", student)


def compare(reference, prefix: str, student) -> None:
    compared = 0
    for name, parameter in student.named_parameters():
        if f"{prefix}.{name}" not in reference:
            assert parameter.grad is None, name  # positions, which are fixed
            continue
        expected = reference[f"{prefix}.{name}"]
        # In exact arithmetic the gradient of a key's bias is 0.
        tolerance = 1e-6 if name.endswith("k_proj.bias") else 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=tolerance, msg=name)
        compared += 1
    assert compared == 60


def test_features_are_of_the_whole_input_and_patches_of_the_hidden_one():
    model = zoo.build("vit")
    student, teacher = as_autoencoder(model), as_autoencoder(zoo.build("vit", seed=1))
    batch = image_batch()
    seen = []
    for name, each in (("teacher", teacher), ("student", student)):
        each.vit.layers[0].register_forward_pre_hook(lambda _, args, name=name: seen.append((name, args[0].shape[1])))
    objective, recorded = join(teacher, student, "patches:2, features:3")
    loss = objective(recorded, batch)
    assert sorted(seen) == [("student", 1 + 4), ("student", 1 + 16), ("teacher", 1 + 16)]
    outputs = student(batch["pixel_values"], noise=batch["masked.noise"])
    patches = patch_loss(batch["pixel_values"], outputs.logits, outputs.mask, 4)
    torch.testing.assert_close(patches, outputs.loss)
    features = feature_loss(*(unmasked_features(each, batch["pixel_values"]) for each in (teacher, student)))
    torch.testing.assert_close(loss.total, 2 * patches + 3 * features)
    assert objective.counts(batch) == {"examples": 5, "patches": 5, "features": 5}


def test_pixels_are_normalised_as_the_model_or_the_term_says():
    batch = image_batch()
    for settled, option, expected in ((True, "", True), (False, "", False), (False, "[normalize=true]", True)):
        student = as_autoencoder(zoo.build("vit"), normalize=settled)
        objective, recorded = join(None, student, f"patches{option}")
        outputs = student(batch["pixel_values"], noise=batch["masked.noise"])
        loss = patch_loss(batch["pixel_values"], outputs.logits, outputs.mask, 4, normalize=expected)
        torch.testing.assert_close(objective(recorded, batch).total, loss)


def test_parts_of_a_batch_of_images_add_up_to_the_whole():
    student, teacher = as_autoencoder(zoo.build("vit")).double(), zoo.build("vit", seed=1).double()
    objective, recorded = join(teacher, student, "patches:0.7, features[mean]:2")
    batch = {name: value.double() for name, value in image_batch(8).items()}
    whole = objective(recorded, batch)
    whole.total.backward()
    expected, total = gradients(recorded), 0.0
    for rows in (slice(0, 3), slice(3, 8)):
        part = {name: value[rows] for name, value in batch.items()}
        loss = objective(recorded, part, objective.counts(batch))
        loss.total.backward()
        total += float(loss.total.detach())
    assert total == pytest.approx(float(whole.total.detach()), rel=1e-9)
    assert furthest(expected, gradients(recorded)) < 1e-9


def test_nothing_is_drawn_where_the_batch_says_what_is_hidden():
    """Else a resumed run, or one on another number of processes, would go on with other random numbers."""
    student = as_autoencoder(zoo.build("vit"))
    objective, recorded = join(zoo.build("vit", seed=1), student, "patches, features")
    before = torch.random.get_rng_state()
    one, again = (objective(recorded, image_batch()).total for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one, again)


def test_models_that_hide_patches_hide_the_same_ones_where_the_batch_does_not_say():
    student, teacher = zoo.build("vit_mae"), zoo.build("vit_mae", seed=1)
    objective, recorded = join(teacher, student, "hidden[last], features")
    noises = []
    for each in (teacher, student):
        each.register_forward_pre_hook(lambda _, args, inputs: noises.append(inputs["noise"]), with_kwargs=True)
    objective(recorded, {"pixel_values": image_batch()["pixel_values"]})
    assert len(noises) == 2
    assert torch.equal(noises[0], noises[1])


@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("positions", ["all", "mean", "first"])
def test_features_are_the_last_hidden_states_without_padding(family, positions):
    teacher, student = zoo.build(family), zoo.build(family, seed=1)
    inputs = zoo.inputs_for(family)
    objective, recorded = join(teacher, student, f"features[{positions}]")
    settings = {name: inputs[name] for name in inputs if name in ("use_cache",)}
    loss = objective(recorded, {name: value for name, value in inputs.items() if name not in settings})
    with torch.no_grad():
        if family == "vit_mae":
            states = [unmasked_features(each, inputs["pixel_values"]) for each in (teacher, student)]
        else:
            states = [each(**inputs).last_hidden_state for each in (teacher, student)]
    rows = []
    mask = inputs.get("attention_mask", torch.ones(states[0].shape[:2]))
    for target, output, counts in zip(*states, mask, strict=True):
        apart = (output - target)[counts.bool()]
        rows.append({"all": apart, "mean": apart.mean(0), "first": apart[0]}[positions].square().mean())
    torch.testing.assert_close(loss.total.detach(), torch.stack(rows).mean(), rtol=1e-4, atol=1e-5)
    loss.total.backward()
    assert Anatomy.of(student).blocks[0].query.module.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_a_student_like_its_teacher_has_nothing_to_learn(family):
    teacher = zoo.build(family)
    student = copy.deepcopy(teacher)
    if family == "vit":
        student = as_autoencoder(student)
    inputs = zoo.inputs_for(family)
    objective, recorded = join(teacher, student, "features")
    assert float(objective(recorded, inputs).total.detach()) == pytest.approx(0, abs=1e-12)


def test_a_cached_teacher_is_asked_once_for_each_image(tmp_path):
    """Features of the whole image do not depend on what is hidden of it in this epoch."""
    teacher, student = zoo.build("vit", seed=1), as_autoencoder(zoo.build("vit"))
    cache = TeacherCache(tmp_path, ("features",), "a ViT")
    objective, recorded = join(teacher, student, "patches, features", cache)
    calls = []
    teacher.register_forward_pre_hook(lambda *_: calls.append(1))
    batch = image_batch()
    first = objective(recorded, batch).parts["features"]
    other = {**batch, "masked.noise": batch["masked.noise"].flip(1)}
    assert torch.equal(objective(recorded, other).parts["features"], first)
    assert len(calls) == 1


def test_features_and_what_is_recorded_masked_come_from_one_recorder():
    model = as_autoencoder(zoo.build("vit"))
    inputs = zoo.inputs_for("vit_mae")
    request = Request.of([1], ["output"], "predictions", "patch_mask", "features", "last_hidden")
    with torch.no_grad():
        recorded = Recorder(model, request)(inputs)
        outputs = model(**inputs)
        whole = unmasked_features(model, inputs["pixel_values"])
    assert torch.equal(recorded["features"], whole)
    assert torch.equal(recorded["patch_mask"], outputs.mask)
    assert torch.equal(recorded["logits"], outputs.logits)
    assert recorded["1.output"].shape == recorded["last_hidden"].shape == (3, 1 + 4, 48)


def test_a_narrower_student_learns_through_a_matrix_that_is_left_behind():
    teacher, student = zoo.build("vit"), zoo.enliven(hf.ViTModel(hf.ViTConfig(**{**zoo.IMAGE, "hidden_size": 24})))
    objective, recorded = join(teacher, student, "features")
    loss = objective(recorded, zoo.inputs_for("vit"))
    loss.total.backward()
    assert recorded.maps["0"]["features"].weight.grad.abs().sum() > 0


def test_a_wrapper_that_would_not_see_the_features_is_refused():
    student = as_autoencoder(zoo.build("vit"))
    objective, _ = join(zoo.build("vit"), student, "features")
    batch = image_batch()
    assert float(objective(student, batch).total.detach()) == pytest.approx(0, abs=1e-12)  # as it is

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    with pytest.raises(ObjectiveError, match="which `Wrapper` would not see; put the student into a `RecordedStudent`"):
        objective(Wrapper(student), batch)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("vit", "`patches` predicts hidden patches, and a `ViTModel` has no decoder"),
        ("vit_mae", "a `ViTMAEModel` has no decoder"),
        ("bert", "a `BertModel` has no decoder"),
    ],
)
def test_what_has_no_decoder_predicts_no_patches(family, message):
    with pytest.raises(ConfigError, match=message):
        join(None, zoo.build(family), "patches")


@pytest.mark.parametrize("term", ["features[last]", "features[reduction=max]"])
def test_options_that_are_not_known_are_refused(term):
    with pytest.raises(ConfigError, match=r"term `features\["):
        join(zoo.build("bert"), zoo.build("bert"), term)


def test_a_few_steps_rebuild_patches_and_stay_near_the_teacher():
    """The plain ViT that comes out is further from its start without distillation than with it."""
    model = zoo.build("vit")
    batch, apart = image_batch(8), {}
    for terms in ("patches", "patches, features:10"):
        student = as_autoencoder(model)
        objective, recorded = join(None if terms == "patches" else copy.deepcopy(model), student, terms)
        optimizer = torch.optim.Adam(recorded.parameters(), lr=3e-3)
        losses = []
        for _ in range(15):
            loss = objective(recorded, batch)
            optimizer.zero_grad()
            loss.total.backward()
            optimizer.step()
            losses.append(float(loss.parts["patches"].detach()))
        assert losses[-1] < losses[0]
        with torch.no_grad():
            states = [each(batch["pixel_values"]).last_hidden_state for each in (model, as_vit(student, like=model))]
        apart[terms] = float(feature_loss(*states))
    assert apart["patches, features:10"] < 0.5 * apart["patches"]


@pytest.mark.parametrize("norm", ["l2", "mars"])
@pytest.mark.parametrize("parts", [1, 2])
def test_distance_of_weights_against_loops(norm, parts):
    """The same distance from all batches, and of its parts together; heads do not count."""
    student, teacher = zoo.build("bert"), zoo.build("bert")
    with torch.no_grad():
        for number, weight in enumerate(teacher.parameters()):
            weight += 0.01 * (number % 3)
    expected = 0.0
    for one, other in zip(student.parameters(), teacher.parameters(), strict=True):
        apart = (one - other).detach()
        if norm == "l2":
            expected += sum(float(value) ** 2 for value in apart.flatten())
        elif apart.dim() == 2:
            expected += max(float(row.abs().sum()) for row in apart)
    objective, recorded = join(teacher, student, f"weights[{norm}]")
    inputs = zoo.inputs_for("bert", batch=4)
    totals = objective.counts(inputs)
    losses = [
        objective(recorded, {name: value[part] for name, value in inputs.items()}, totals)
        for part in torch.arange(4).chunk(parts)
    ]
    assert sum(loss.total for loss in losses).item() == pytest.approx(expected, rel=1e-4)
    sum(loss.total for loss in losses).backward()
    assert all(weight.grad is not None for weight in student.parameters()) == (norm == "l2")


@pytest.mark.parametrize(
    ("family", "matrix"), [("gpt2", "h.0.attn.c_proj"), ("vit", "embeddings.patch_embeddings.projection")]
)
def test_a_row_is_one_output_however_a_family_keeps_it(family, matrix):
    """One output of one matrix has moved by 1 at each of its inputs."""
    student = zoo.build(family)
    teacher = copy.deepcopy(student)
    weight = student.get_submodule(matrix).weight
    with torch.no_grad():
        output = weight[:, 1] if family == "gpt2" else weight[1]  # GPT-2 keeps inputs first
        output += 1.0
    objective, recorded = join(teacher, student, "weights[mars]")
    loss = objective(recorded, zoo.inputs_for(family)).total
    assert loss.item() == pytest.approx(output.numel(), rel=1e-4)


def test_no_distance_is_no_reason_to_move():
    student = zoo.build("bert")
    objective, recorded = join(copy.deepcopy(student), student, "weights")
    loss = objective(recorded, zoo.inputs_for("bert")).total
    loss.backward()
    assert loss.item() == 0
    assert all(not weight.grad.any() for weight in student.parameters())


def test_weights_of_another_shape_are_refused():
    student = zoo.build("bert")
    changed = copy.deepcopy(student.config)
    changed.intermediate_size *= 2
    with pytest.raises(ConfigError, match="the student's shape"):
        join(hf.BertModel(changed), student, "weights")
    with pytest.raises(ConfigError, match="there is none"):
        join(None, zoo.build("bert"), "weights")
