"""The whole quantized BERT against the published code (golden file 09): values, losses and gradients."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from slimformer import Anatomy, Taps
from slimformer.methods.quantize.config import QuantizeConfig
from slimformer.methods.quantize.student import kd_objective, quantize_numbers
from slimformer.views.attention import kept_scores, use_attention

LOSSES = {"soft_labels": "cls", "hidden": "rep", "map": "attmap", "output": "output"}


@pytest.fixture(scope="module")
def reference(golden):
    return golden("09_quantised_bert")


def build(reference, side):
    sizes = reference.meta["case"]
    model = hf.BertForSequenceClassification(
        hf.BertConfig(
            vocab_size=sizes["V"],
            hidden_size=sizes["H"],
            num_attention_heads=sizes["h"],
            intermediate_size=sizes["I"],
            num_hidden_layers=sizes["Ln"],
            num_labels=sizes["C"],
            max_position_embeddings=16,
        )
    )
    prefix = f"{side}_param."
    state = {key.removeprefix(prefix): reference[key] for key in reference._arrays if key.startswith(prefix)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == []
    return model.double().eval()


@pytest.fixture
def pair(reference):
    teacher, student = build(reference, "teacher"), build(reference, "student")
    quantize_numbers(student, QuantizeConfig(reference=True))
    return teacher, student


def batch(reference):
    return {name: reference[f"in.{name}"] for name in ("input_ids", "token_type_ids", "attention_mask")}


def close(made, wanted, tolerance=1e-9):
    torch.testing.assert_close(made, wanted, rtol=0, atol=tolerance * max(1e-3, float(wanted.abs().max())))


@pytest.mark.parametrize("side", ["teacher", "student"])
def test_every_value_golden(reference, pair, side):
    model = pair[side == "student"]
    use_attention(model)
    records = ("attention_output", "output", "context")
    with torch.no_grad(), kept_scores(model, (0, 1)) as scores, Taps(model, "all", records, embeddings=True) as taps:
        logits = model(**batch(reference)).logits
    close(logits, reference[f"out.{side}.logits"])
    close(taps.embeddings, reference[f"out.{side}.hidden"][0])
    real = batch(reference)["attention_mask"].bool()
    for layer in (0, 1):
        close(taps[layer].attention_output, reference[f"out.{side}.attn_output"][layer])
        close(taps[layer].output, reference[f"out.{side}.hidden"][layer + 1])
        probabilities = scores[layer].masked.softmax(-1)
        close(probabilities, reference[f"out.{side}.probs"][layer])
        shown = real[:, None, None, :].expand_as(scores[layer].scores)
        close(scores[layer].scores[shown], reference[f"out.{side}.scores"][layer][shown])
    if side == "teacher":  # of the student the taps see the context already rounded for the matrix that reads it
        heads = taps[0].context.unflatten(-1, (-1, 4)).transpose(1, 2)
        close(heads, reference["out.teacher.context"][0])


def test_losses_and_gradients_golden(reference, pair):
    teacher, student = pair
    first, second = reference.meta["case"]["coef"]
    assert first == 1.0
    objective = kd_objective(teacher, student, QuantizeConfig(kd="map+output", beta=second, reference=True))
    loss = objective(student, batch(reference))
    for name, theirs in LOSSES.items():
        assert float(loss.parts[name].detach()) == pytest.approx(
            float(reference[f"out.{theirs}_loss_f64"]), rel=1e-9
        ), name
    assert float(loss.total.detach()) == pytest.approx(float(reference["out.loss_f64"]), rel=1e-9)
    loss.total.backward()
    checked = 0
    for name, parameter in student.named_parameters():
        plain = name.replace("parametrizations.weight.original", "weight")
        wanted = reference[f"out.grad.{plain}"]
        # Gradients of key biases are zero in exact arithmetic.
        made = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(made, wanted, rtol=0, atol=max(1e-12, 1e-9 * float(wanted.abs().max())), msg=plain)
        checked += 1
    assert checked == 41


def test_scores_golden(reference, pair):
    objective = kd_objective(*pair, QuantizeConfig(kd="score", reference=True))
    made = float(objective(pair[1], batch(reference)).parts["score"].detach())
    assert made == pytest.approx(float(reference["out.attscore_loss_f64"]), rel=1e-9)


def test_what_stays_in_float(pair):
    """As in the paper: positions, types, norms, biases and the classifier; everything else is quantized."""
    from slimformer.views import attached

    student = pair[1]
    viewed = {at.path for at in attached(student)}
    matrices = {path for path, module in student.named_modules() if isinstance(module, torch.nn.Linear)}
    assert viewed == (matrices - {"classifier"}) | {"bert.embeddings.word_embeddings"}
    assert len(Anatomy.of(student).blocks) * 6 + 2 == len(viewed)
