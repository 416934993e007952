"""Choosing a learning rate out of a grid that grows."""

from __future__ import annotations

import pytest
import yaml

from slimformer.errors import ConfigError
from slimformer.methods.finetune import FinetuneConfig
from slimformer.train.rates import best_rate, next_rate

GRID = (1e-5, 1e-4, 1e-3)


@pytest.mark.parametrize(
    "value", ["1e-5,1e-4,1e-3", "1e-3, 1e-5 ,1e-4", ["1e-5", "1e-4,1e-3"], [1e-3, 1e-5, 1e-4], (1e-5, 1e-4, 1e-3)]
)
def test_a_grid_is_read_from_text_and_lists_and_put_in_order(value):
    assert FinetuneConfig.make({"lr_grid": value}).lr_grid == GRID


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1e-5", "give from 2 to 32 learning rates, all of them different"),
        ("1e-5,1e-5", "give from 2 to 32 learning rates, all of them different"),
        (",".join(f"{n}e-6" for n in range(1, 50)), "give from 2 to 32"),
        ("1e-5,0", "a learning rate is greater than 0"),
        ("1e-5,-1", "a learning rate is greater than 0"),
        ("1e-5,nan", "finite number"),
        ("1e-5,inf", "inf is no learning rate"),
        ("1e-5,fast", "give learning rates such as `1e-5,3e-5,1e-4`"),
        ("", "give a value, or leave it out"),
    ],
)
def test_a_grid_that_cannot_be_tried_is_refused(value, message):
    with pytest.raises(ConfigError, match=f"`lr_grid` is `.*{message}"):
        FinetuneConfig.make({"lr_grid": value})


def test_one_rate_and_a_grid_are_not_both_given():
    with pytest.raises(ConfigError, match="`lr` and `lr_grid` both say how fast to learn; keep one of them"):
        FinetuneConfig.make({"lr_grid": "1e-5,1e-4", "lr": 1e-4})


def test_settings_with_a_grid_are_the_same_once_written_out_and_read_again(tmp_path):
    config = FinetuneConfig.make({"lr_grid": "1e-4,3e-4", "epochs": 2})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert FinetuneConfig.read(tmp_path / "run.yaml", {}) == config
    (tmp_path / "run.yaml").write_text("lr-grid: 1e-4, 3e-4\nepochs: 2\n")
    assert FinetuneConfig.read(tmp_path / "run.yaml", {}) == config


@pytest.mark.parametrize(
    ("scores", "best", "further"),
    [
        ((0.5, 0.9, 0.7), 1e-4, None),
        ((0.9, 0.5, 0.7), 1e-5, 1e-6),
        ((0.5, 0.7, 0.9), 1e-3, 1e-2),
        ((0.9, 0.9, 0.7), 1e-5, None),  # one inside is as good
        ((0.5, 0.9, 0.9), 1e-4, None),
        ((0.9, 0.5, 0.9), 1e-5, 1e-6),
        ((0.5, 0.9, None), 1e-4, None),  # diverged: the border is found
        ((0.5, None, None), 1e-5, 1e-6),
    ],
)
def test_the_best_rate_and_the_one_beyond_the_border(scores, best, further):
    tried = dict(zip(GRID, scores, strict=True))
    assert best_rate(tried) == best
    assert next_rate(GRID, tried) == further


def test_a_widened_grid_goes_on_at_the_same_factor():
    assert next_rate(GRID, {1e-6: 0.9, 1e-5: 0.8, 1e-4: 0.1, 1e-3: 0.1}) == 1e-7
    assert next_rate((1e-5, 3e-5, 1e-4), {1e-5: 0.1, 3e-5: 0.2, 1e-4: 0.3}) == 3.2e-4
    even = [number * 1e-5 for number in range(1, 10)]
    assert next_rate(even, {rate: rate for rate in even}) == 1.2e-4


def test_a_fine_grid_never_comes_back_to_a_rate_it_tried():
    grid = (1.0e-4, 1.001e-4)
    assert next_rate(grid, {1.0e-4: 0.9, 1.001e-4: 0.1}) == pytest.approx(1e-4 / 1.001)
    assert next_rate(grid, {1.0e-4: 0.1, 1.001e-4: 0.9}) == pytest.approx(1.001e-4 * 1.001)
