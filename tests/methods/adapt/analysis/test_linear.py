"""The linear model of the theory: closed forms against training step by step, and which of the bounds hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import ConfigError
from slimformer.methods.adapt.analysis import LinearProblem, check_bounds, random_problem

ROUNDS = range(5)


def problem(seed: int, *, rank: int | None = None, width: int = 7, examples: int = 5, outputs: int = 2, **settings):
    """Any teacher, whether or not pre-training could have made it; of a lower rank where asked for."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(width, examples))
    if rank is not None:
        features = draw.normal(size=(width, rank)) @ draw.normal(size=(rank, examples))
    start, teacher = (draw.normal(size=(outputs, width)) * draw.choice([0.01, 1.0, 30.0]) for _ in range(2))
    values = {"ridge": 0.7, "rate": 0.6 / np.linalg.norm(features, 2) ** 2, "steps": 9, **settings}
    return LinearProblem(features, draw.normal(size=(outputs, examples)), start, teacher, **values)


def descend(weights, gradient, rate: float, steps: int):
    for _ in range(steps):
        weights = weights - rate * gradient(weights)
    return weights


def slow_round(each: LinearProblem, round_: int):
    """Each round by gradient descent on its loss, from zero until nothing moves."""
    teacher, features = each.teacher, each.features
    rate = 1 / (np.linalg.norm(features, 2) ** 2 + each.ridge)
    for _ in range(round_):
        outputs = teacher @ features

        def gradient(weights, outputs=outputs):
            return (weights @ features - outputs) @ features.T + each.ridge * weights

        teacher = descend(np.zeros_like(teacher), gradient, rate, 4000)
    return teacher


def slow_fine_tuned(each: LinearProblem, round_: int):
    features = each.features
    return descend(
        slow_round(each, round_),
        lambda weights: (weights @ features - each.targets) @ features.T,
        each.rate,
        each.steps,
    )


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_rounds_and_fine_tuning_are_what_gradient_descent_ends_at(rank, ridge):
    each = problem(1, rank=rank, ridge=ridge)
    for round_ in range(4):
        np.testing.assert_allclose(each.distilled(round_), slow_round(each, round_), rtol=1e-8, atol=1e-10)
        tuned = slow_fine_tuned(each, round_)
        np.testing.assert_allclose(each.fine_tuned(round_), tuned, rtol=1e-8, atol=1e-10)
        assert each.distance(round_) == pytest.approx(np.sqrt(((each.start - tuned) ** 2).sum()))


def test_without_ridge_a_round_is_the_least_norm_solution():
    each = problem(2, ridge=0.0)
    outputs = each.teacher @ each.features
    least = np.linalg.lstsq(each.features.T, outputs.T, rcond=None)[0].T
    np.testing.assert_allclose(each.distilled(1), least, atol=1e-12)
    np.testing.assert_allclose(each.distilled(4), least, atol=1e-12)


def test_fine_tuning_for_long_forgets_the_component_in_the_span():
    each = problem(3, steps=10**6)
    least = np.linalg.lstsq(each.features.T, each.targets.T, rcond=None)[0].T
    np.testing.assert_allclose(each.fine_tuned(1), least, atol=1e-10)
    outside = each.teacher - each.teacher @ each.features @ np.linalg.pinv(each.features)
    np.testing.assert_allclose(each.fine_tuned(0), least + outside, atol=1e-10)


seeds = st.integers(0, 2**32)


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds,
    rank=st.sampled_from([None, 1, 3]),
    width=st.integers(3, 8),
    examples=st.integers(1, 8),
    ridge=st.floats(0, 100),
    share=st.floats(0.01, 1.0),
    steps=st.integers(0, 200),
)
def test_what_holds_for_any_problem(seed, rank, width, examples, ridge, share, steps):
    each = problem(seed, rank=rank, width=width, examples=examples, ridge=ridge, steps=steps)
    each = replace(each, rate=share / np.linalg.norm(each.features, 2) ** 2)
    bounds = [each.bound(round_) for round_ in ROUNDS]
    for round_ in ROUNDS:
        assert each.distance(round_) <= bounds[round_] * (1 + 1e-12)
        assert each.printed_bound(round_) <= bounds[round_] * (1 + 1e-12)
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(bounds))
    # The first round removes what lies outside the span, and never brings it back.
    norm = (each.teacher**2).sum()
    assert all(each.outside(round_) <= 1e-24 * norm for round_ in ROUNDS[1:])
    if width > examples:
        assert each.outside(0) > 1e-9 * norm


def test_the_printed_bound_fails_where_teacher_and_labels_agree():
    """One direction, q = c = 1 and e = ½, from zero: the weight is 1, and ψ is √½."""
    one = np.ones((1, 1))
    each = LinearProblem(one, one, 0 * one, one, ridge=0.0, rate=0.5, steps=1)
    assert each.distance(1) == pytest.approx(1.0)
    assert each.printed_bound(1) == pytest.approx(0.5**0.5)
    assert each.bound(1) == pytest.approx(1.0)


def test_the_report_counts_each_claim():
    report = check_bounds(problems=60, rounds=3, seed=5).data
    draw = np.random.default_rng(5)
    problems = [random_problem(draw) for _ in range(60)]
    distances = [[each.distance(round_) for round_ in range(4)] for each in problems]
    held = [
        [distance <= each.printed_bound(round_) * (1 + 1e-12) for round_, distance in enumerate(row)]
        for each, row in zip(problems, distances, strict=True)
    ]
    assert report.printed_holds == pytest.approx(np.mean([all(row) for row in held]))
    assert report.printed_holds_at == pytest.approx(np.mean(held, 0))
    assert report.distance_falls == pytest.approx(np.mean([row == sorted(row, reverse=True) for row in distances]))
    assert report.first_round_falls == pytest.approx(np.mean([row[1] <= row[0] for row in distances]))


@pytest.mark.slow
def test_the_printed_claim_holds_mostly_and_the_corrected_one_always():
    result = check_bounds()
    report = result.data
    assert (report.problems, report.rounds) == (2000, 5)
    assert 0.95 < report.printed_holds < 0.99
    assert report.worst > 1.2
    assert report.distance_falls < report.first_round_falls < 0.25
    assert report.corrected_holds == report.corrected_falls == 1.0
    assert report.outside < 1e-20
    assert "<svg" in result.figure.svg
    assert check_bounds() == result


def test_pre_training_leaves_what_lies_outside_the_span():
    each = random_problem(np.random.default_rng(0))
    change = each.teacher - each.start
    coefficients = np.linalg.lstsq(each.features, change.T, rcond=None)[0]
    np.testing.assert_allclose(each.features @ coefficients, change.T, atol=1e-12)


def test_bad_settings():
    each = problem(0)
    with pytest.raises(ConfigError, match=r"`rate` is 9, and beyond 1/s² = .* a step overshoots.*at most"):
        replace(each, rate=9.0)
    with pytest.raises(ConfigError, match=r"`teacher` has shape \(2, 3\).* need \(2, 7\)"):
        replace(each, teacher=np.ones((2, 3)))
    with pytest.raises(ConfigError, match=r"`ridge` is -1 and `steps` is 9; give 0 or more"):
        replace(each, ridge=-1)
    with pytest.raises(ConfigError, match="`problems` is 0"):
        check_bounds(problems=0)
