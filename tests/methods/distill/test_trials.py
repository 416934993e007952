"""Which of the teacher's blocks is learned from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimformer import Anatomy
from slimformer.errors import ConfigError, TrainingError
from slimformer.methods.distill.trials import _read_trials, fixed_layer, halve, winner
from tests import zoo


def anatomy(family, layers):
    import transformers as hf

    config = zoo.CONFIGS[family]()
    config.num_hidden_layers = layers
    return Anatomy.of(hf.AutoModel.from_config(config))


def test_named_blocks():
    assert fixed_layer("last", anatomy("bert", 12)) == 11
    assert fixed_layer("upper-middle", anatomy("bert", 24)) == 20  # the 21st
    assert fixed_layer("upper-middle", anatomy("roberta", 24)) == 18  # the 19th
    assert fixed_layer("upper-middle", anatomy("xlm-roberta", 24)) == 18
    assert fixed_layer("upper-middle", anatomy("bert", 1)) == 0
    assert fixed_layer(None, anatomy("bert", 24)) == 20
    assert fixed_layer(None, anatomy("roberta", 24)) == 18
    assert fixed_layer(None, anatomy("bert", 12)) == 11
    assert fixed_layer(2, anatomy("bert", 6)) == 2
    assert fixed_layer(-1, anatomy("bert", 6)) == 5


@pytest.mark.parametrize("number", [6, -7])
def test_a_block_there_is_not(number):
    with pytest.raises(ConfigError, match="the teacher has 6 blocks; give 0 to 5"):
        fixed_layer(number, anatomy("bert", 6))


def test_halving_tries_the_better_half_twice_as_long():
    goodness = {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.7, 4: 0.2}
    trials = halve(list(goodness), 10, lambda layer, steps: goodness[layer])
    assert [(trial.layer, trial.steps) for trial in trials] == [
        *[(layer, 10) for layer in range(5)],
        *[(layer, 20) for layer in (1, 2, 3)],
        *[(layer, 40) for layer in (2, 3)],
    ]
    assert winner(trials) == 2


@given(st.lists(st.floats(0, 1), min_size=2, max_size=24))
def test_the_best_wins_when_trials_agree(scores):
    trials = halve(list(range(len(scores))), 1, lambda layer, steps: scores[layer])
    assert scores[winner(trials)] == max(scores)


def test_a_late_bloomer_can_win_once_it_is_in_the_better_half():
    trials = halve([0, 1, 2, 3], 10, lambda layer, steps: layer if steps == 10 else -layer)
    assert winner(trials) == 2


@pytest.mark.parametrize("text", ["", "[1]", '[{"layer": 1}]', "{" * 100_000])
def test_a_note_of_trials_that_cannot_be_read_says_what_to_do(text, tmp_path):
    (tmp_path / "teacher_layer.json").write_text(text)
    with pytest.raises(TrainingError, match="remove it to try the blocks again"):
        _read_trials(tmp_path / "teacher_layer.json")
