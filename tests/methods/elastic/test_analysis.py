"""Consistency and scaling law, against slow and obvious versions and against the paper's constants."""

from __future__ import annotations

import pytest
import torch

from slimformer.errors import ConfigError
from slimformer.methods.elastic.analysis import Run, consistency, fit_scaling_law, scaling_laws
from slimformer.sizes import extract, make_elastic
from tests import zoo

#: Section 4.1.2 of the paper: separately trained models, and MatFormer.
PAPER = {"baseline": (14.08, -0.10, 0.89), "MatFormer": (21.60, -0.13, 1.33)}
#: Parameters without embeddings and tokens of five models, about as large as the paper's.
POINTS = [(13e6, 10e9), (50e6, 20e9), (113e6, 30e9), (201e6, 40e9), (453e6, 80e9)]


def decoder():
    import transformers as hf

    torch.manual_seed(0)
    return zoo.enliven(hf.LlamaForCausalLM(zoo.CONFIGS["llama"]())).eval()


def slow_agreement(model, other, inputs):
    """Token by token: same likeliest token, and the KL divergence from its definition."""
    equal, divergences = [], []
    for row in range(len(inputs["input_ids"])):
        for place in range(inputs["input_ids"].shape[1]):
            if not inputs["attention_mask"][row, place]:
                continue
            ids = {"input_ids": inputs["input_ids"][row : row + 1, : place + 1]}
            p, q = (each(**ids).logits[0, -1].double().softmax(-1) for each in (model, other))
            equal.append(bool(p.argmax() == q.argmax()))
            divergences.append(float((p * (p / q).log()).sum()))
    return sum(equal) / len(equal), sum(divergences) / len(divergences)


def slow_tokens(model, other, ids, prefix, count):
    """Generate greedily with one model and ask the other at every step."""
    same = []
    for row in ids:
        text = row[:prefix]
        for _ in range(count):
            choice = model(input_ids=text[None]).logits[0, -1].argmax()
            same.append(bool(other(input_ids=text[None]).logits[0, -1].argmax() == choice))
            text = torch.cat([text, choice[None]])
    return sum(same) / len(same)


@pytest.mark.slow
@torch.no_grad()
def test_consistency_is_what_its_definition_says():
    model = decoder()
    model.generation_config.eos_token_id = None
    make_elastic(model)
    inputs = {name: value for name, value in zoo.inputs_for("llama").items() if name in ("input_ids", "attention_mask")}
    other = extract(model, "M")
    data = consistency(model, [inputs], sizes=["S", "S,M,L"], others={"twin": other}, prefix=4, new_tokens=5).data
    assert list(data) == ["S", "S,M,L", "twin"]
    for name, size in (("S", "S"), ("S,M,L", "S,M,L"), ("twin", "M")):
        small = extract(model, size)
        top1, kl = slow_agreement(model, small, inputs)
        assert data[name].top1 == pytest.approx(top1)
        assert data[name].kl == pytest.approx(kl, rel=1e-4)
        long_enough = inputs["input_ids"][inputs["attention_mask"][:, :4].all(-1)]
        assert data[name].tokens == pytest.approx(slow_tokens(model, small, long_enough, 4, 5))
    assert 0 < data["S"].top1 < 1


def test_the_largest_size_agrees_with_itself_and_batches_add_up():
    model = decoder()
    make_elastic(model)
    inputs = {name: value for name, value in zoo.inputs_for("llama").items() if name in ("input_ids", "attention_mask")}
    rows = [{name: value[row : row + 1] for name, value in inputs.items()} for row in range(3)]
    whole = consistency(model, [inputs]).data
    parts = consistency(model, rows).data
    assert list(whole) == ["S", "M", "L"]
    assert parts["S"].top1 == pytest.approx(whole["S"].top1)
    assert parts["S"].kl == pytest.approx(whole["S"].kl, rel=1e-4)
    itself = consistency(model, rows, sizes=["XL"], prefix=4, new_tokens=4).data["XL"]
    assert (itself.top1, itself.tokens) == (1, 1)
    assert itself.kl == pytest.approx(0, abs=1e-6)


def test_tokens_after_the_end_of_a_text_are_not_counted():
    model = decoder()
    make_elastic(model)
    inputs = {"input_ids": zoo.inputs_for("llama", padding=None)["input_ids"]}
    model.generation_config.eos_token_id = None
    added = model.generate(inputs["input_ids"][:1, :4], do_sample=False, max_new_tokens=6)[0, 4:].tolist()
    model.generation_config.eos_token_id = added[2]
    count = added.index(added[2]) + 1
    assert count < 6
    first = {"input_ids": inputs["input_ids"][:1]}
    share = consistency(model, [first], prefix=4, new_tokens=6).data["M"].tokens
    with torch.no_grad():
        assert share == slow_tokens(model, extract(model, "M"), first["input_ids"], 4, count)


def test_texts_too_short_to_go_on_with_are_refused():
    model = decoder()
    make_elastic(model)
    short = {"input_ids": zoo.inputs_for("llama", padding=None)["input_ids"][:, :6]}
    with pytest.raises(ConfigError, match="`new_tokens` is 5, and no text has the 16 tokens"):
        consistency(model, [short], new_tokens=5)
    assert consistency(model, [short]).data["S"].tokens is None


def test_a_classifier_is_compared_by_its_classes():
    model = zoo.build_headed("bert")
    make_elastic(model)
    batch = {**zoo.inputs_for("bert"), "labels": torch.tensor([0, 1, 1])}
    finding = consistency(model, [batch])
    small = extract(model, "S")
    inputs = zoo.inputs_for("bert")
    same = (model(**inputs).logits.argmax(-1) == small(**inputs).logits.argmax(-1)).float().mean()
    assert finding.data["S"].top1 == pytest.approx(float(same))
    assert finding.data["S"].tokens is None
    assert finding.figure.svg.startswith("<svg")


def test_what_cannot_be_compared_is_refused():
    model = zoo.build_headed("bert")
    make_elastic(model)
    with pytest.raises(ConfigError, match="no decoder"):
        consistency(model, [zoo.inputs_for("bert")], new_tokens=3)
    with pytest.raises(ConfigError, match="nothing to compare"):
        consistency(model, [])
    with pytest.raises(ConfigError, match="`masked` gives logits"):
        consistency(model, [zoo.inputs_for("bert")], others={"masked": zoo.build_headed("xlm-roberta")})


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_constants_are_recovered(name):
    a, b, c = PAPER[name]
    law = fit_scaling_law([Run(n, d, a * (n * d) ** b + c) for n, d in POINTS])
    assert (law.a, law.b, law.c) == (pytest.approx(a, rel=1e-3), pytest.approx(b, rel=1e-4), pytest.approx(c, rel=1e-3))
    assert law.rmse < 1e-6
    assert law.loss(3e8, 5e10) == pytest.approx(a * (3e8 * 5e10) ** b + c, rel=1e-6)


def test_a_fit_is_the_best_one_where_losses_are_noisy():
    from scipy.optimize import curve_fit

    generator = torch.Generator().manual_seed(0)
    noise = (torch.randn(8, generator=generator) * 0.01).tolist()
    products = [10 ** (3 + 0.5 * place) for place in range(8)]
    losses = [5 * product**-0.3 + 1 + each for product, each in zip(products, noise, strict=True)]
    law = fit_scaling_law([Run(product, 1, loss) for product, loss in zip(products, losses, strict=True)])
    expected, _ = curve_fit(lambda x, a, b, c: a * x**b + c, products, losses, p0=(5, -0.3, 1))
    assert (law.a, law.b, law.c) == pytest.approx(tuple(expected), rel=1e-4)


def test_laws_of_several_groups_have_a_picture():
    runs = {name: [Run(n, d, a * (n * d) ** b + c) for n, d in POINTS] for name, (a, b, c) in PAPER.items()}
    finding = scaling_laws(runs)
    assert list(finding.data) == list(PAPER)
    assert finding.figure.svg.startswith("<svg")


def test_runs_that_cannot_tell_a_law_are_refused():
    with pytest.raises(ConfigError, match="2 different N·D"):
        fit_scaling_law([Run(1e6, 1e6, 3.0), Run(1e6, 1e6, 3.1), Run(2e6, 1e6, 2.9)])
    with pytest.raises(ConfigError, match="no finite loss"):
        fit_scaling_law([Run(1e6, 1e6, float("nan")), Run(3e6, 1e6, 3.1), Run(2e6, 1e6, 2.9)])
