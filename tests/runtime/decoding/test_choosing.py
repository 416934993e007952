"""Which token comes next, against Transformers and against how often each is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer.errors import ConfigError
from slimformer.runtime.decoding.choosing import Chooser, Sampling

LOGITS = np.random.default_rng(0).standard_normal(40).astype(np.float32) * 2


def in_transformers(sampling):
    scores, ids = torch.tensor(LOGITS)[None], torch.zeros(1, 1, dtype=torch.long)
    steps = [hf.TemperatureLogitsWarper(float(sampling.temperature))]
    steps += [hf.TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    steps += [hf.TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    return hf.LogitsProcessorList(steps)(ids, scores).softmax(-1)[0].numpy()


@pytest.mark.parametrize("temperature", [0.3, 1, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 7, 400])
@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.1])
def test_what_is_left_is_what_transformers_leaves(temperature, top_k, top_p):
    sampling = Sampling(temperature, top_k, top_p)
    left = sampling.probabilities(LOGITS)
    np.testing.assert_allclose(left, in_transformers(sampling), atol=1e-6)
    assert left.sum() == pytest.approx(1)


def test_tokens_are_drawn_as_often_as_they_are_probable():
    sampling = Sampling(top_k=5)
    chooser = sampling.chooser()
    drawn = np.bincount([chooser.choose(LOGITS) for _ in range(20_000)], minlength=40) / 20_000
    np.testing.assert_allclose(drawn, sampling.probabilities(LOGITS), atol=0.015)


def test_a_seed_chooses_the_tokens():
    runs = [[chooser.choose(LOGITS) for _ in range(30)] for chooser in map(Chooser, [Sampling(seed=4)] * 2)]
    assert runs[0] == runs[1]
    other = Sampling(seed=5).chooser()
    assert runs[0] != [other.choose(LOGITS) for _ in range(30)]


def test_the_first_of_the_likeliest_is_taken():
    assert Chooser(None).choose(np.array([1, 3, 3, 2], np.float32)) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (0, -1, "a", True, float("inf"), float("nan"))),
        *(("top_k", value) for value in (0, -1, 1.5)),
        *(("top_p", value) for value in (0, 1.1, "a", float("nan"))),
        *(("seed", value) for value in (-1, 1.5, True)),
    ],
)
def test_settings_are_checked(name, value):
    with pytest.raises(ConfigError, match=name.replace("_", "[-_]")):
        Sampling(**{name: value})
