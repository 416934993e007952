"""Losses of further pre-training with self-distillation against the reference implementation (golden file 06)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import ObjectiveError
from slimformer.objectives.losses import feature_loss, patch_loss, patchify

AUTOENCODERS = ["mae0", "mae1"]


@pytest.fixture(scope="module")
def reference(golden):
    return golden("06_self_distillation")


@pytest.mark.parametrize("case", ["cls0", "cls1"])
@pytest.mark.parametrize(("dtype", "suffix", "tolerance"), [(torch.float64, "f64", 1e-9), (torch.float32, "f32", 1e-5)])
def test_features_golden(reference, case, dtype, suffix, tolerance):
    """The reference compares [CLS] alone: the first position of features whose other positions may be anything."""
    teacher = reference[f"{case}.in.teacher_cls"].to(dtype)[:, None]
    student = reference[f"{case}.in.student_cls"].to(dtype).requires_grad_()
    others = torch.randn(2, len(student), 3, student.shape[-1], dtype=dtype)
    loss = feature_loss(
        torch.cat([teacher, others[0]], 1),
        torch.cat([student[:, None], others[1]], 1),
        positions="first",
        reduction="sum",
    )
    assert float(loss.detach()) == pytest.approx(float(reference[f"{case}.out.loss_{suffix}"]), rel=tolerance)
    (gradient,) = torch.autograd.grad(loss, student)
    expected = reference[f"{case}.out.grad_student_cls_{suffix}"]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("case", AUTOENCODERS)
def test_patches_golden(reference, case):
    (shape,) = (each["case"] for each in reference.meta["cases"] if each["prefix"] == case)
    pixels, mask = reference[f"{case}.in.pixel_values"], reference[f"{case}.out.mask"]
    assert torch.equal(patchify(pixels, shape["ps"]), reference[f"{case}.out.target_patches"])
    logits = reference[f"{case}.out.logits"].requires_grad_()
    loss = patch_loss(pixels, logits, mask, shape["ps"], normalize=shape["norm"])
    assert float(loss.detach()) == pytest.approx(float(reference[f"{case}.out.loss"]), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = reference[f"{case}.out.grad_logits"]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def slow_patch_loss(pixels, predictions, mask, size, normalize):
    images = []
    for image, said, hidden in zip(pixels, predictions, mask, strict=True):
        across = image.shape[2] // size
        errors = []
        for number in range(len(said)):
            if not hidden[number]:
                continue
            top, left = number // across * size, number % across * size
            target = [float(image[c, top + y, left + x]) for y in range(size) for x in range(size) for c in range(3)]
            if normalize:
                mean = sum(target) / len(target)
                variance = sum((value - mean) ** 2 for value in target) / (len(target) - 1)
                target = [(value - mean) / math.sqrt(variance + 1e-6) for value in target]
            errors.append(sum((float(a) - b) ** 2 for a, b in zip(said[number], target, strict=True)) / len(target))
        images.append(sum(errors) / max(1, len(errors)))
    return sum(images) / len(images)


@pytest.mark.parametrize("normalize", [False, True])
def test_patch_loss_equals_the_slow_version(normalize):
    """Images that are not square, and as many hidden patches as chance has it: each image counts the same."""
    pixels, predictions = torch.randn(3, 3, 4, 6).double(), torch.randn(3, 6, 12).double()
    mask = torch.tensor([[1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    loss = patch_loss(pixels, predictions, mask, 2, normalize=normalize)
    assert float(loss) == pytest.approx(slow_patch_loss(pixels, predictions, mask, 2, normalize), rel=1e-10)


def test_patches_that_were_seen_may_be_predicted_as_anything():
    pixels, predictions = torch.randn(1, 3, 4, 4), torch.randn(1, 4, 12)
    mask = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    spoiled = predictions.clone()
    spoiled[0, 1], spoiled[0, 2] = math.inf, math.nan
    spoiled.requires_grad_()
    loss = patch_loss(pixels, spoiled, mask, 2)
    loss.backward()
    assert torch.equal(loss, patch_loss(pixels, predictions, mask, 2))
    assert torch.isfinite(spoiled.grad[mask.bool()]).all()


def test_a_patch_of_one_colour_can_be_normalised():
    loss = patch_loss(torch.full((1, 3, 4, 4), 0.5), torch.zeros(1, 4, 12), torch.ones(1, 4), 2, normalize=True)
    assert float(loss) == 0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.floats(0.5, 4), st.floats(-3, 3), st.integers(0, 2**16))
def test_normalised_pixels_do_not_depend_on_brightness_and_contrast(contrast, brightness, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels, predictions = (torch.randn(*shape, generator=generator).double() for shape in ((2, 3, 4, 4), (2, 4, 12)))
    mask = (torch.rand(2, 4, generator=generator) < 0.75).long()
    one, other = (
        patch_loss(each, predictions, mask, 2, normalize=True) for each in (pixels, pixels * contrast + brightness)
    )
    assert float(one) == pytest.approx(float(other), rel=1e-4, abs=1e-6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_patches_hold_every_pixel_once(down, across, size, channels):
    pixels = torch.arange(2 * channels * down * size * across * size).reshape(2, channels, down * size, across * size)
    patches = patchify(pixels, size)
    assert patches.shape == (2, down * across, size * size * channels)
    assert torch.equal(patches.flatten().sort().values, pixels.flatten())
    corner = pixels[:, :, -1, -1]  # the last pixel of the last patch, its channels side by side
    assert torch.equal(patches[:, -1, -channels:], corner)


def slow_feature_loss(teacher, student, mask, positions, reduction):
    examples = []
    for b in range(len(mask)):
        rows = [student[b, t] - teacher[b, t] for t in range(mask.shape[1]) if mask[b, t]]
        if positions == "mean":
            rows = [sum(rows) / len(rows)]
        elif positions == "first":
            rows = rows[:1]
        squares = [float(value) ** 2 for row in rows for value in row]
        examples.append(sum(squares) / (len(squares) if reduction == "mean" else 1))
    return sum(examples) / len(examples)


@pytest.mark.parametrize("positions", ["all", "mean", "first"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_feature_loss_equals_the_slow_version_on_either_padding(positions, reduction):
    teacher, student = torch.randn(3, 5, 4).double(), torch.randn(3, 5, 4).double()
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    loss = feature_loss(teacher, student, mask, positions, reduction)
    assert float(loss) == pytest.approx(slow_feature_loss(teacher, student, mask, positions, reduction), rel=1e-10)
    whole = torch.ones(3, 5, dtype=torch.long)
    loss = feature_loss(teacher, student, None, positions, reduction)
    assert float(loss) == pytest.approx(slow_feature_loss(teacher, student, whole, positions, reduction), rel=1e-10)


def test_every_position_is_the_default_and_a_mean():
    teacher, student = torch.randn(2, 3, 5, 4).double()
    expected = (student - teacher).square().mean()
    torch.testing.assert_close(feature_loss(teacher, student), expected)
    # The paper's sum is larger by length times width.
    torch.testing.assert_close(feature_loss(teacher, student, reduction="sum"), expected * 5 * 4)


@pytest.mark.parametrize("positions", ["all", "mean", "first"])
def test_padding_may_hold_anything(positions):
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    teacher, student = torch.randn(2, 2, 3, 4)
    spoiled, target = student.clone(), teacher.clone()
    spoiled[0, 2], target[1, 0] = math.inf, math.nan
    spoiled.requires_grad_()
    loss = feature_loss(target, spoiled, mask, positions)
    loss.backward()
    assert torch.equal(loss, feature_loss(teacher, student, mask, positions))
    assert torch.isfinite(spoiled.grad).all()
    assert not spoiled.grad[mask == 0].any()


def test_teachers_get_no_gradient():
    teacher, student = torch.randn(2, 2, 3, 4).requires_grad_()
    feature_loss(teacher, student).backward()
    pixels = torch.randn(2, 3, 4, 4, requires_grad=True)
    predictions = torch.randn(2, 4, 12, requires_grad=True)
    patch_loss(pixels, predictions, torch.ones(2, 4), 2).backward()
    assert pixels.grad is None
    assert predictions.grad is not None


def test_half_precision_is_summed_in_single():
    """A sum of squares of many features would leave the range of float16."""
    teacher, student = torch.zeros(1, 64, 64, dtype=torch.float16), torch.full((1, 64, 64), 8.0, dtype=torch.float16)
    loss = feature_loss(teacher, student, reduction="sum")
    assert loss.dtype == torch.float32
    assert float(loss) == 64 * 64 * 64
    assert patch_loss(torch.zeros(1, 3, 2, 2), torch.ones(1, 1, 12).half(), torch.ones(1, 1), 2).dtype == torch.float32


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: feature_loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4)), "shapes must agree"),
        (lambda: patchify(torch.zeros(1, 3, 4, 6), 4), "patches of 4 pixels do not cover an image of 4 by 6"),
        (lambda: patch_loss(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 9), torch.ones(1, 4), 2), "shapes must agree"),
        (lambda: patch_loss(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 12), torch.ones(1, 5), 2), "a mask"),
    ],
)
def test_impossible_shapes_are_named(wrong, message):
    with pytest.raises(ObjectiveError, match=message):
        wrong()
