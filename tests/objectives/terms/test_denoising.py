"""The term of TSDAE beside a slow and obvious one, token by token."""

from __future__ import annotations

import math

import pytest
import torch

from slimformer import Anatomy
from slimformer.errors import ConfigError
from slimformer.models.denoising import FAMILIES, as_denoiser
from slimformer.models.pooling import pool
from slimformer.objectives import Models, RecordedStudent, TermObjective, build_terms, parse_terms
from tests import zoo

#: Texts as they were, and what is left of them.
TEXTS = ([2, 31, 57, 8, 90, 44, 3], [2, 71, 15, 3], [2, 60, 61, 62, 63, 3])
LEFT = ([2, 57, 44, 3], [2, 15, 3], [2, 60, 61, 63, 3])


def join(student, terms: str = "denoising"):
    built = build_terms(parse_terms(terms), Models(Anatomy.of(student)), variants=("clean", "masked"))
    return TermObjective(built, student, {}), RecordedStudent(student, built).eval()


def padded(rows, fill: int, length: int = 0) -> torch.Tensor:
    length = max(length, *map(len, rows))
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])


def batch_of(numbers=(0, 1, 2), padding: int = 0, length: int = 0) -> dict[str, torch.Tensor]:
    texts, left = ([every[number] for number in numbers] for every in (TEXTS, LEFT))
    return {
        "input_ids": padded(texts, padding, length),
        "attention_mask": padded([[1] * len(row) for row in texts], 0, length),
        "masked.input_ids": padded(left, padding, length),
        "masked.attention_mask": padded([[1] * len(row) for row in left], 0, length),
        "masked.labels": padded(texts, -100, length),
    }


def slow_loss(model, text: list[int], left: list[int]) -> float:
    """-log p of each token but the first, a mean, by hand: one token after the other, one head after the other."""
    base = model.bert
    vector = base(torch.tensor([left])).last_hidden_state[0].mean(0)
    table = base.embeddings
    states = []
    for place, token in enumerate(text[:-1]):
        summed = table.word_embeddings.weight[token] + table.position_embeddings.weight[place]
        states.append(table.LayerNorm(summed + table.token_type_embeddings.weight[0]))
    for block in base.encoder.layer:
        attention, cross = block.attention.self, block.crossattention
        width = attention.attention_head_size
        queries, keys, values = (
            [matrix(state) for state in states] for matrix in (attention.query, attention.key, attention.value)
        )
        after = []
        for place, state in enumerate(states):
            heads = []
            for head in range(attention.num_attention_heads):
                part = slice(head * width, (head + 1) * width)
                scores = [
                    float(queries[place][part] @ keys[other][part]) / math.sqrt(width) for other in range(place + 1)
                ]
                shares = torch.tensor(scores).softmax(0)
                heads.append(sum(shares[other] * values[other][part] for other in range(place + 1)))
            hidden = block.attention.output.LayerNorm(block.attention.output.dense(torch.cat(heads)) + state)
            # There is one vector to attend to, so that it gets all the attention whatever is asked.
            hidden = cross.output.LayerNorm(cross.output.dense(cross.self.value(vector)) + hidden)
            inner = torch.nn.functional.gelu(block.intermediate.dense(hidden))
            after.append(block.output.LayerNorm(block.output.dense(inner) + hidden))
        states = after
    losses = [
        -float(model.cls(state[None, None])[0, 0].log_softmax(-1)[token])
        for state, token in zip(states, text[1:], strict=True)
    ]
    return sum(losses) / len(losses)


@torch.no_grad()
def test_it_is_the_slow_loss_of_each_text():
    model = zoo.enliven(as_denoiser(zoo.build("bert"))).eval()
    slow = [slow_loss(model, text, left) for text, left in zip(TEXTS, LEFT, strict=True)]
    objective, recorded = join(model)
    for number, expected in enumerate(slow):
        assert float(objective(recorded, batch_of([number])).total) == pytest.approx(expected, rel=1e-5)
    loss = objective(recorded, batch_of())
    assert float(loss.parts["denoising"]) == pytest.approx(sum(slow) / 3, rel=1e-5)
    assert objective.counts(batch_of()) == {"examples": 3, "denoising": 3}


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["mean", "cls", "max"])
def test_padding_and_neighbours_change_nothing(family, way):
    model = zoo.enliven(as_denoiser(zoo.build(family))).eval()
    objective, recorded = join(model, f"denoising[{way}]")
    padding = model.config.pad_token_id
    alone = [float(objective(recorded, batch_of([number], padding)).total) for number in range(3)]
    assert float(objective(recorded, batch_of(padding=padding)).total) == pytest.approx(sum(alone) / 3, rel=1e-5)
    longer = batch_of(padding=padding, length=20)
    assert float(objective(recorded, longer).total) == pytest.approx(sum(alone) / 3, rel=1e-5)
    assert len({round(loss, 4) for loss in alone}) == 3


@torch.no_grad()
def test_parts_of_a_batch_add_up_to_it():
    objective, recorded = join(zoo.enliven(as_denoiser(zoo.build("bert"))).eval())
    whole = batch_of()
    parts = [objective(recorded, batch_of(numbers), objective.counts(whole)).total for numbers in ([0], [1, 2])]
    torch.testing.assert_close(sum(parts), objective(recorded, whole).total)


@torch.no_grad()
def test_the_decoder_sees_the_vector_alone():
    model = zoo.enliven(as_denoiser(zoo.build("bert"))).eval()
    objective, recorded = join(model)
    term = objective.terms[0].term
    inputs = {name.removeprefix("masked."): value for name, value in batch_of().items() if "masked." in name}
    activations = recorded({"masked": inputs}, (0,))["masked"][""]
    states = model.base_model(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
    torch.testing.assert_close(activations["pooled.mean"], pool(states, inputs["attention_mask"]))
    logits = term.derive(activations, inputs, None)["token_logits"]
    assert logits.shape == (sum(len(text) - 1 for text in TEXTS), 99)
    other = {**inputs, "input_ids": torch.full((3, 2), 9), "attention_mask": torch.ones(3, 2, dtype=torch.long)}
    assert torch.equal(term.derive(activations, other, None)["token_logits"], logits)
    moved = {"pooled.mean": activations["pooled.mean"].flip(0)}
    assert not torch.allclose(term.derive(moved, inputs, None)["token_logits"], logits)


def test_the_encoder_learns_through_the_vector():
    model = zoo.enliven(as_denoiser(zoo.build("bert"))).eval()
    objective, recorded = join(model)
    inputs = {name.removeprefix("masked."): value for name, value in batch_of().items() if "masked." in name}
    vectors = recorded({"masked": inputs}, (0,))["masked"][""]["pooled.mean"]
    logits = objective.terms[0].term.derive({"pooled.mean": vectors}, inputs, None)["token_logits"]
    assert torch.autograd.grad(logits.square().sum(), vectors)[0].abs().sum(1).min() > 0
    assert vectors.grad_fn is not None


def test_what_cannot_be_decoded_is_refused():
    with pytest.raises(ConfigError, match="a `BertModel` has no decoder"):
        join(zoo.build("bert"))
    with pytest.raises(ConfigError, match=r"the pooling is `cls\+mean`"):
        join(as_denoiser(zoo.build("bert")), "denoising[cls+mean]")
