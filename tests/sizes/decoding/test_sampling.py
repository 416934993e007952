"""Sampling with a draft is distributed as sampling without."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chisquare

from slimformer.sizes import Draft, Elastic
from slimformer.sizes.decoding.acceptance import accept_greedy, accept_sampled
from tests.sizes.decoding.models import elastic_decoder

DRAWS, BATCH, TOKENS, VOCABULARY = 50_000, 10_000, 3, 5
PROMPT = torch.tensor([[1, 4, 2, 0]])
#: A true distribution fails this once in ten thousand seeds; a wrong one fails by hundreds of orders of magnitude.
LEVEL = 1e-4


@pytest.fixture(scope="module")
def model():
    small = {"hidden_size": 16, "head_dim": 4, "intermediate_size": 32, "num_hidden_layers": 1}
    model = elastic_decoder(vocab_size=VOCABULARY, seed=3, **small)
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    return model


def exact(model, temperature=1.0, top_k=VOCABULARY):
    """The probability of every continuation, by the rule of the chain."""
    texts = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=TOKENS)))
    with torch.no_grad():
        logits = model(input_ids=torch.cat([PROMPT.expand(len(texts), -1), texts], dim=1)).logits / temperature
    logits = logits[:, PROMPT.shape[1] - 1 : -1]
    lowest = logits.topk(top_k, dim=-1).values[..., -1:]
    steps = logits.masked_fill(logits < lowest, -torch.inf).log_softmax(-1).gather(-1, texts[..., None])
    return steps.squeeze(-1).sum(1).exp().double()


def draw(model, **settings):
    """How often each continuation comes, and the share of drafted tokens that was accepted."""
    counts, drafted, accepted = torch.zeros(VOCABULARY**TOKENS, dtype=torch.double), 0, 0
    weights = VOCABULARY ** torch.arange(TOKENS - 1, -1, -1)
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS, "pad_token_id": 0, **settings}
    for _ in range(DRAWS // BATCH):
        inputs = {"input_ids": PROMPT.expand(BATCH, -1), "attention_mask": torch.ones(BATCH, PROMPT.shape[1])}
        output = model.generate(**inputs, **settings, return_dict_in_generate=True)
        texts = (output.sequences[:, PROMPT.shape[1] :] * weights).sum(1)
        counts += texts.bincount(minlength=len(counts))
        if "draft" in settings:
            drafted, accepted = drafted + output.statistics.drafted, accepted + output.statistics.accepted
    return counts, accepted / max(1, drafted)


def p_value(counts, probabilities):
    """Of a chi-square test; continuations that are expected fewer than five times count as one."""
    expected = probabilities / probabilities.sum() * DRAWS
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if expected[-1] < 5:
        assert observed[-1] <= 20
        observed, expected = observed[:-1], expected[:-1]
    return chisquare(observed.numpy(), (expected * observed.sum() / expected.sum()).numpy()).pvalue


@pytest.mark.parametrize(
    "draft",
    [
        Draft("S", length=2),
        pytest.param("M", marks=pytest.mark.slow),
        pytest.param(Draft("S", length=2, shortlist=[1, 2, 4]), marks=pytest.mark.slow),
    ],
    ids=["fixed", "chosen", "shortlist"],
)
def test_continuations_come_as_often_as_from_the_largest_size(model, draft):
    counts, acceptance = draw(model, draft=draft)
    assert 0.1 < acceptance < 0.95, "both ways through the rejection must be taken"
    assert p_value(counts, exact(model)) > LEVEL


@pytest.mark.slow
def test_with_processors_too(model):
    settings = {"temperature": 0.7, "top_k": 3}
    counts, _ = draw(model, draft=Draft("S", length=2), **settings)
    assert p_value(counts, exact(model, **settings)) > LEVEL
    assert not counts[exact(model, **settings) == 0].any()


def test_the_test_would_see_another_distribution(model):
    with Elastic.of(model).at("S"):
        counts, _ = draw(model)
    assert p_value(counts, exact(model)) < 1e-100


def test_a_token_stays_with_the_ratio_of_the_probabilities():
    """One drafted token, against the rule written out: accepted with min(1, p/q), else from max(0, p - q)."""
    p, q, draws = torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0.5, 0.2, 0.3]), 40_000
    drafted = torch.multinomial(q.expand(draws, -1), 1)
    target = torch.stack([p, torch.tensor([0.0, 0.0, 1.0])]).expand(draws, -1, -1)
    accepted, tokens = accept_sampled(drafted, q.expand(draws, 1, -1), target)
    assert accepted.double().mean() == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.01)
    assert chisquare(tokens[:, 0].bincount().numpy(), (p * draws).numpy()).pvalue > LEVEL
    assert (tokens[accepted == 1, 1] == 2).all()
    assert (tokens[accepted == 0, 0] == 1).all()  # the only token that p likes better than q


def test_equal_distributions_accept_everything():
    p = torch.rand(50, 4, 7).softmax(-1)
    drafted = torch.multinomial(p[:, :3].flatten(0, 1), 1).view(50, 3)
    accepted, tokens = accept_sampled(drafted, p[:, :3], p)
    assert (accepted == 3).all()
    assert torch.equal(tokens[:, :3], drafted)


def test_the_best_tokens_stay_up_to_the_first_mistake():
    scores = torch.eye(4)[torch.tensor([[1, 2, 3, 0], [1, 2, 3, 0], [1, 2, 3, 0]])]
    drafted = torch.tensor([[1, 2, 3], [1, 0, 3], [0, 2, 3]])
    accepted, tokens = accept_greedy(drafted, scores)
    assert accepted.tolist() == [3, 1, 0]
    assert tokens.tolist() == [[1, 2, 3, 0]] * 3
