"""Tokens that are hidden or come next: heads that see nothing else, and texts that count alike."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch.nn import functional

from slimformer import Anatomy
from slimformer.models import IGNORED
from slimformer.objectives import Models, RecordedStudent, TermObjective, build_terms, parse_terms
from slimformer.objectives.losses.counting import mean_over_texts
from tests import zoo

MASK = 4
FAMILIES = [name for name, config in zoo.CONFIGS.items() if type(config()) in hf.AutoModelForMaskedLM._model_mapping]


def masked_batch(masks: tuple[int, ...], length: int = 24) -> dict[str, torch.Tensor]:
    """Texts with so many hidden tokens each, the last of them padded."""
    torch.manual_seed(3)
    ids = torch.randint(5, 99, (len(masks), length))
    labels = torch.full_like(ids, IGNORED)
    for row, count in enumerate(masks):
        labels[row, 1 : 1 + count] = ids[row, 1 : 1 + count]
    attention = torch.ones_like(ids)
    attention[-1, -3:] = 0
    hidden = torch.where(labels == IGNORED, ids, MASK)
    return {"input_ids": ids, "attention_mask": attention, "masked.input_ids": hidden, "masked.labels": labels}


def objective(model: torch.nn.Module, terms: str) -> tuple[TermObjective, RecordedStudent]:
    built = build_terms(parse_terms(terms), Models(Anatomy.of(model)), variants=("clean", "masked"))
    return TermObjective(built, model, {}), RecordedStudent(model, built).eval()


def losses_by_hand(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Cross-entropy of the hidden tokens of each text, by the logits of all positions."""
    logits = model(input_ids=batch["masked.input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["masked.labels"]
    return [
        functional.cross_entropy(logits[row][labels[row] != IGNORED], labels[row][labels[row] != IGNORED])
        for row in range(len(labels))
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_sees_hidden_tokens_alone(family):
    torch.manual_seed(0)
    model = hf.AutoModelForMaskedLM.from_config(zoo.CONFIGS[family]()).eval()
    batch = masked_batch((1, 20, 3))
    goal, recorded = objective(model, "reconstruction:1, mlm:0")
    rows = []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda _, args, __: rows.append(args[0].numel() // args[0].shape[-1]))
    loss = goal(recorded, batch)
    assert rows == [24]
    by_text = losses_by_hand(model, batch)
    assert loss.parts["reconstruction"].item() == pytest.approx(torch.stack(by_text).mean().item(), rel=1e-5)
    counts = torch.tensor([1.0, 20.0, 3.0])
    assert loss.parts["mlm"].item() == pytest.approx(
        ((torch.stack(by_text) * counts).sum() / counts.sum()).item(), rel=1e-5
    )


def test_a_bare_model_gets_a_head_that_counts_alike():
    model = zoo.build("bert")
    goal, recorded = objective(model, "reconstruction")
    assert set(recorded.maps["0"]) == {"head"}
    parts = [
        goal(recorded, {name: value[row : row + 1] for name, value in masked_batch((1, 20)).items()}) for row in (0, 1)
    ]
    whole = goal(recorded, masked_batch((1, 20)))
    assert whole.total.item() == pytest.approx(sum(each.total.item() for each in parts) / 2, rel=1e-4)


@pytest.mark.parametrize("masks", [(1, 20, 3), (0, 2), (0, 0)])
def test_parts_of_a_batch_add_up(masks):
    model = hf.AutoModelForMaskedLM.from_config(zoo.CONFIGS["bert"]()).eval()
    goal, recorded = objective(model, "reconstruction")
    batch = masked_batch(masks)
    totals = goal.counts(batch)
    assert totals["reconstruction"] == sum(count > 0 for count in masks)
    whole = goal(recorded, batch, totals).total
    parts = [
        goal(recorded, {name: value[row : row + 1] for name, value in batch.items()}, totals).total
        for row in range(len(masks))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-5, atol=1e-6)


def test_the_mean_over_texts_by_hand():
    chosen = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    losses = torch.tensor([4.0, 1.0, 2.0, 3.0])
    assert mean_over_texts(losses, chosen).item() == pytest.approx((4.0 + 2.0) / 2)
    assert mean_over_texts(losses[:0], chosen[2:]).item() == 0


def test_decoders_reconstruct_the_next_token():
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(zoo.CONFIGS["llama"]()).eval()
    goal, recorded = objective(model, "reconstruction")
    batch = masked_batch((0, 0, 0))
    clean = {name: value for name, value in batch.items() if "." not in name}
    logits = model(**clean).logits
    means = []
    for row, size in enumerate(clean["attention_mask"].sum(1).tolist()):
        means.append(functional.cross_entropy(logits[row, : size - 1], clean["input_ids"][row, 1:size]))
    assert goal(recorded, clean).total.item() == pytest.approx(torch.stack(means).mean().item(), rel=1e-5)
