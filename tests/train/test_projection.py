"""Matrices that stay in balls around their start while a model is trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slimformer.anatomy.rows import matrices
from slimformer.train import train
from slimformer.train.projection import Projection
from tests import zoo
from tests.train.test_trainer import collate, features, options, still

RADIUS, ZERO_RADIUS = 0.05, 1.0


def run(model, folder, after_step, **settings):
    loop = {"after_step": after_step, "quiet": True}
    return train(model, options(max_steps=5, lr=1e-2, **settings), features(), collate, folder, **loop)


def without_head(model):
    return {n: weight.detach().clone() for n, weight in model.named_parameters() if not n.startswith("classifier")}


def test_row_sums_are_within_the_radius_after_five_steps(tmp_path):
    model = still()
    centres = without_head(model)
    run(model, tmp_path, Projection(model, centres, RADIUS, ZERO_RADIUS))
    longest = {}
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            moved = weight.detach() - centres.get(name, torch.zeros(()))
            longest[name] = max(sum(map(abs, row)) for row in moved.tolist())
    assert longest["classifier.weight"] <= ZERO_RADIUS * (1 + 1e-5)
    assert all(length <= RADIUS * (1 + 1e-4) for name, length in longest.items() if name in centres)
    # A step of Adam moves every entry by about the learning rate, so that all of them had to be drawn back.
    assert longest["bert.encoder.layer.0.output.dense.weight"] == pytest.approx(RADIUS, rel=1e-4)
    bias = model.bert.encoder.layer[0].output.dense.bias
    assert float((bias - centres["bert.encoder.layer.0.output.dense.bias"]).detach().abs().sum()) > RADIUS


def test_whole_matrices_are_within_the_radius_after_five_steps(tmp_path):
    model = still()
    centres = without_head(model)
    run(model, tmp_path, Projection(model, centres, RADIUS, ZERO_RADIUS, "frobenius"))
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and name in centres:
            assert float((weight - centres[name]).detach().norm()) <= RADIUS * (1 + 1e-4), name
    assert float(model.classifier.weight.detach().norm()) <= ZERO_RADIUS * (1 + 1e-5)


def test_a_wide_ball_changes_nothing(tmp_path):
    model, twin = still(), still()
    run(model, tmp_path / "a", Projection(model, without_head(model), 1e6))
    run(twin, tmp_path / "b", None)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("family", ["bert", "vit", "gpt2", "deberta-v2", "gpt_neox"])
def test_a_row_is_one_output_in_every_layout(family):
    """Of a matrix where one output is moved, that one alone is drawn back."""
    model = zoo.build_headed(family)
    centres = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    projection = Projection(model, centres, 1.0)
    kinds = set()
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or f"{name}.weight" not in projection:
            continue
        kind = type(module).__name__
        kinds.add(kind)
        out = weight[:, 1] if kind == "Conv1D" else weight[1]
        with torch.no_grad():
            out += 1.0
    moved = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    projection()
    assert kinds & {"Linear", "Conv1D"}
    for name, matrix in matrices(model):
        rows, before = matrix.rows().detach(), matrix.rows(moved[name])
        centre = matrix.rows(centres[name])
        changed = (rows != before).any(-1).nonzero().flatten().tolist()
        assert changed in ([1], []), name
        if changed:
            torch.testing.assert_close((rows - centre)[1], torch.full_like(rows[1], 1 / rows.shape[-1]))
    assert max(projection.distances().values()) <= 1 + 1e-4


def test_a_matrix_that_is_shared_or_frozen_comes_once_or_never():
    model = zoo.build_headed("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    model.transformer.wpe.requires_grad_(False)
    names = [name for name, _ in matrices(model)]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names
    assert "transformer.wpe.weight" not in names
    assert len(names) == len({id(matrix.weight) for _, matrix in matrices(model)})


def test_after_a_step_comes_before_its_weights_are_measured_and_written(tmp_path):
    model, events = still(), []

    def after(step):
        events.append(("after", step))
        nn.init.constant_(model.classifier.bias, step + 1.0)

    def evaluation(measured):
        events.append(("measured", measured.classifier.bias[0].item()))
        return {"score": 0.0}

    loop = {"after_step": after, "evaluation": evaluation, "quiet": True}
    train(model, options(max_steps=4, eval_every=2, save_every=4), features(), collate, tmp_path, **loop)
    order = [("after", 0), ("after", 1), ("measured", 2.0), ("after", 2), ("after", 3), ("measured", 4.0)]
    assert events == order
    assert float(model.classifier.bias[0]) == 4.0


def test_parts_of_a_batch_are_one_step(tmp_path):
    steps = []
    run(still(), tmp_path, steps.append, accumulation=4)
    assert steps == [0, 1, 2, 3, 4]
