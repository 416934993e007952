"""Training a masked autoencoder with a teacher: what is hidden and learned is the same after an interruption."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer.anatomy import Anatomy
from slimformer.models.autoencoder import as_autoencoder, as_vit, encoder_weights, patch_count
from slimformer.objectives import Models, RecordedStudent, Teacher, TermObjective, build_terms, parse_terms
from slimformer.tasks.features import Features, StackingCollator, TensorCollator
from slimformer.tasks.masking import PatchMasking
from slimformer.train import TrainingOptions, train
from tests import zoo

STEPS = 7


class InterruptionError(Exception):
    """As a kill, at a step of our choice."""


def run(folder, stop: int | None = None, **settings) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Train from the beginning or from a checkpoint; return the ViT's weights and what was hidden, batch by batch."""
    config = hf.ViTConfig(**zoo.IMAGE, hidden_dropout_prob=0.1)
    torch.manual_seed(0)
    model = zoo.enliven(hf.ViTModel(config))
    student = as_autoencoder(model, seed=5)
    teacher = as_autoencoder(zoo.build("vit", seed=1))
    masking = PatchMasking(patch_count(student.config), seed=3)
    models = Models(Anatomy.of(student), Anatomy.of(teacher))
    terms = build_terms(parse_terms("patches:1, features:1"), models, variants=("clean", "masked"))
    objective = TermObjective(terms, student, {"teacher": Teacher(teacher)})
    recorded = RecordedStudent(student, terms).train()
    masks = []
    student.register_forward_hook(lambda _module, _args, outputs: masks.append(outputs.mask))
    pixels = np.random.default_rng(0).normal(size=(10, 3, 16, 16)).astype(np.float32)
    features = Features(
        [{"pixel_values": each} for each in pixels],
        transform=lambda inputs, index, epoch: {**inputs, "masked.noise": masking(inputs, index, epoch)["noise"]},
    )

    def interrupt(step: int) -> None:
        if step == stop:
            raise InterruptionError

    options = TrainingOptions(max_steps=STEPS, batch_size=4, save_every=2, seed=3, lr=1e-2, **settings)
    collate = TensorCollator(StackingCollator())
    train(recorded, options, features, collate, folder, objective=objective, before_step=interrupt, quiet=True)
    return encoder_weights(as_vit(student, like=model)), masks


@pytest.mark.slow
def test_interrupted_and_resumed_it_hides_the_same_patches_and_ends_with_the_same_weights(tmp_path):
    weights, masks = run(tmp_path / "whole")
    assert len(masks) == STEPS
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == STEPS
    with pytest.raises(InterruptionError):
        run(tmp_path / "run", stop=5)
    resumed, rest = run(tmp_path / "run")
    assert len(rest) == 3  # from the checkpoint of step 4
    assert all(torch.equal(one, other) for one, other in zip(rest, masks[4:], strict=True))
    assert weights.keys() == resumed.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, resumed[name]), name


@pytest.mark.slow
def test_a_batch_in_parts_hides_the_same_patches(tmp_path):
    """What is hidden depends on the image, not on the part of a batch it comes in."""
    whole, parts = (run(tmp_path / name, accumulation=count)[1] for name, count in (("whole", 1), ("parts", 2)))
    assert torch.equal(torch.cat(whole), torch.cat(parts))
