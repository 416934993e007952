"""What changes in the course of a run goes by its steps, in however many parts their batches are computed."""

from __future__ import annotations

import copy

import pytest
import torch

from slimformer.methods.mask.config import MaskConfig
from slimformer.methods.mask.scores import Masking
from slimformer.methods.quantize.config import QuantizeConfig
from slimformer.methods.quantize.student import kd_objective, quantize_numbers
from slimformer.train import train
from tests.train.test_trainer import collate, features, options, still


def stages(folder, steps, accumulation):
    """Two stages, the second one from step 4 on; returns the terms of each step, by its number from 1."""
    teacher = still()
    student = copy.deepcopy(teacher)
    config = QuantizeConfig(stages=2, first_stage=3, max_steps=6, accumulation=accumulation)
    quantize_numbers(student, config)
    settings = options(max_steps=steps, accumulation=accumulation, save_every=2, schedule="constant", warmup=0)
    objective = kd_objective(teacher, student, config)
    trained = train(student, settings, features(), collate, folder, objective=objective, quiet=True)
    return {entry["step"]: "map" in entry for entry in trained.log if "loss" in entry}


@pytest.mark.parametrize("parts", [(1, 2), (4, 1)])
def test_stages_change_at_their_step_when_resumed_with_other_accumulation(tmp_path, parts):
    expected = {step: step <= 3 for step in range(1, 7)}
    assert stages(tmp_path / "whole", 6, 1) == expected
    stages(tmp_path / "changed", 2, parts[0])
    assert stages(tmp_path / "changed", 6, parts[1]) == expected


def test_a_rising_sparsity_is_the_same_for_all_parts_of_a_batch(tmp_path):
    def masked(folder, accumulation):
        model = still()
        config = MaskConfig(sparsity=0.6, max_steps=6, accumulation=accumulation, batch_size=8)
        masking = Masking.start(model, config)
        settings = options(accumulation=accumulation, lr=1e-2)
        train(model, settings, features(), collate, folder, objective=masking.objective(), quiet=True)
        return [view.scores.detach() for _, view in masking.views]

    whole, parts = masked(tmp_path / "whole", 1), masked(tmp_path / "parts", 4)
    for ours, theirs in zip(parts, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)  # Adam blows up what rounds otherwise
