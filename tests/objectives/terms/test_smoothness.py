"""R3F: noise on embeddings, against the published code (golden file 07c) and a forward that is told its embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from slimformer import Anatomy
from slimformer.errors import ConfigError
from slimformer.objectives import Models, TermObjective, build_terms, parse_terms
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.smoothness import NOISED, R3F, NoisedStudent
from tests import zoo

PREDICTIONS = Request(outputs=frozenset({"predictions"}))


def batch(family="bert"):
    inputs = zoo.inputs_for(family)
    return {**inputs, "labels": torch.tensor([0, 1, 1])}


def noised(model, noise=0.1, distribution="uniform", **where):
    return NoisedStudent(model, R3F.Options(noise=noise, distribution=distribution), seed=3, **where)


@pytest.mark.parametrize("case", ["c0", "c1"])
def test_golden(golden, case):
    """The loss and all gradients of a tiny model, the embedding table's included."""
    reference = golden("07c_r3f")
    settings = next(each for each in reference.meta["cases"] if each["prefix"] == case)
    weights = {name: reference[f"{case}.param.{name}"].requires_grad_() for name in ("E", "W1", "b1", "W2", "b2")}

    def head(embeddings):
        hidden = torch.tanh(embeddings.mean(1) @ weights["W1"].T + weights["b1"])
        return hidden @ weights["W2"].T + weights["b2"]

    embeddings = weights["E"][reference[f"{case}.in.ids"]]
    logits = head(embeddings)
    other = head(embeddings.detach() + reference[f"{case}.in.noise"])
    term = R3F.of(Models(Anatomy.of(zoo.build_headed("bert"))))
    mean = term.compare({"logits": other}, {"logits": logits}, {"input_ids": reference[f"{case}.in.ids"]})
    loss = functional.cross_entropy(logits, reference[f"{case}.in.targets"], reduction="sum")
    loss = loss + settings["lam"] * mean.sum
    loss.backward()
    torch.testing.assert_close(loss.detach(), reference[f"{case}.out.loss_sum"], rtol=1e-5, atol=0)
    for name, weight in weights.items():
        expected = reference[f"{case}.out.grad.{name}"]
        torch.testing.assert_close(weight.grad, expected, rtol=0, atol=1e-4 * float(expected.abs().max()), msg=name)


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_it_is_a_forward_that_is_told_its_embeddings(distribution):
    model, inputs = zoo.build_headed("bert"), batch()
    source = noised(model, distribution=distribution)
    source.begin(5)
    noise = source.draw((*inputs["input_ids"].shape, 48))
    embeddings = model.bert.embeddings.word_embeddings(inputs["input_ids"]) + noise
    expected = model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"]).logits
    torch.testing.assert_close(source(model, inputs, PREDICTIONS)["logits"], expected)


@pytest.mark.parametrize("family", ["bert", "vit", "qwen2", "electra"])
def test_what_makes_embeddings_has_no_gradient_and_the_rest_has(family):
    model, inputs = zoo.build_headed(family), batch(family)
    if family == "qwen2":
        model.config.pad_token_id = 0
    source = noised(model)
    source(model, inputs, PREDICTIONS)["logits"].square().sum().backward()
    table = set(source.embedding.parameters())
    assert table
    assert all(weight.grad is None for weight in table)
    assert all(block.query.weight.grad.abs().sum() > 0 for block in Anatomy.of(model).blocks)
    assert not source.embedding._forward_hooks


def test_images_are_noised_too():
    model, inputs = zoo.build_headed("vit"), batch("vit")
    with torch.no_grad():
        clean = model(pixel_values=inputs["pixel_values"]).logits
        small, large = (noised(model, noise)(model, inputs, PREDICTIONS)["logits"] for noise in (1e-4, 1.0))
    assert 0 < float((small - clean).abs().max()) < 1e-2 < float((large - clean).abs().max())


def test_the_noise_follows_from_seed_step_part_and_process():
    model, inputs = zoo.build_headed("bert"), batch()

    def noises(process=0, seed=3):
        source = NoisedStudent(model, R3F.Options(noise=0.1), seed, process)
        drawn = {}
        for step in (0, 1):
            source.begin(step)
            for part in (0, 1):
                drawn[step, part] = source(model, inputs, PREDICTIONS)["logits"].detach()
        return drawn

    first = noises()
    assert all(torch.equal(value, first[key]) for key, value in noises().items())
    everything = [*first.values(), *noises(process=1).values(), *noises(seed=4).values()]
    assert not any(torch.equal(one, other) for i, one in enumerate(everything) for other in everything[:i])


def test_noise_is_as_large_as_told():
    source = noised(zoo.build_headed("bert"), noise=0.5)
    uniform = source.draw((40_000,))
    assert 0.499 < float(uniform.max()) <= 0.5
    assert -0.5 <= float(uniform.min()) < -0.499
    normal = noised(source.model, 0.5, "normal").draw((40_000,))
    assert float(normal.std()) == pytest.approx(0.5, rel=0.02)
    assert float(normal.mean()) == pytest.approx(0, abs=0.02)


def test_as_an_objective_both_forwards_learn():
    """Gradients against those of the sum written out."""
    model, inputs = zoo.build_headed("bert"), batch()
    source = noised(model)
    terms = build_terms(parse_terms("labels, r3f[noise=0.1]:0.5"), Models(Anatomy.of(model)), labelled=True)
    loss = TermObjective(terms, model, {NOISED: source})(model, inputs)
    loss.total.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    source.begin(0)
    noise = source.draw((*inputs["input_ids"].shape, 48))
    clean = model(**inputs)
    embeddings = model.bert.embeddings.word_embeddings(inputs["input_ids"]).detach() + noise
    other = model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"]).logits
    p, q = clean.logits.log_softmax(-1), other.log_softmax(-1)
    both = nn.KLDivLoss(reduction="batchmean", log_target=True)
    expected = clean.loss + 0.5 * (both(p, q) + both(q, p))
    expected.backward()
    torch.testing.assert_close(loss.total, expected)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "llama"])
def test_heads_without_classes_are_refused(family):
    with pytest.raises(ConfigError, match="`r3f` compares the probabilities of classes, which a `"):
        R3F.of(Models(Anatomy.of(zoo.build_headed(family))))


def test_numbers_are_refused():
    model = zoo.build_headed("bert")
    model.config.problem_type = "regression"
    with pytest.raises(ConfigError, match="problem type `regression`"):
        R3F.of(Models(Anatomy.of(model)))


def test_a_method_that_has_no_noise_refuses_it():
    model = zoo.build_headed("bert")
    terms = build_terms(parse_terms("labels, r3f"), Models(Anatomy.of(model)), labelled=True)
    with pytest.raises(ConfigError, match="term `r3f` learns from `noised`, and there is no teacher; leave it out"):
        TermObjective(terms, model, {})
