"""Models, terms and batches on which objectives are compared with themselves, whole and in parts."""

from __future__ import annotations

import torch

from slimformer import Anatomy
from slimformer.methods.distill import StudentShape
from slimformer.methods.distill.student import build_student
from slimformer.models.autoencoder import as_autoencoder
from slimformer.objectives import Models, RecordedStudent, Teacher, TermObjective, build_terms, parse_terms
from tests import zoo

LAYERS = "relations, minilm-v1, hidden, hidden[embeddings,all], hidden[0,padding=true], attention-maps[all]"
MORE_LAYERS = "attention-scores[all], attention-scores[last,reference=true], attention-output[all], mha[0], pooled[cls]"
FEATURES = "features, features[first], features[mean,reduction=sum]"
#: Family with its head → every term it can learn.
TERMS = {
    "xlm-roberta": f"{LAYERS}, {MORE_LAYERS}, {FEATURES}, pooled, logits, logits[temperature=2], mlm, labels",  # masked
    "gpt2": f"{LAYERS}, {MORE_LAYERS}, {FEATURES}, logits, clm, labels",  # next tokens
    "distilbert": "relations, logits, labels, hidden[all]",  # spans
    "bert": "relations[qk,vv,heads=2], logits, labels, mlm, attention-maps[temperature=2]",  # classes
    "roberta": "logits, labels, hidden[every-2]",  # tags
    "vit_mae": f"{FEATURES}, patches, patches[normalize=true], hidden",  # hidden patches
}


def batch(family: str, rows: int = 8, length: int = 9) -> dict[str, torch.Tensor]:
    """Texts of many lengths with labels of the family's head, and a masked copy of them; or images."""
    generator = torch.Generator().manual_seed(7)
    if family in zoo.IMAGES:
        noise = torch.rand(2, rows, 16, generator=generator)
        pixels = torch.randn(rows, 3, 16, 16, generator=generator)
        return {"pixel_values": pixels, "noise": noise[0], "masked.noise": noise[1]}
    ids = torch.randint(5, 99, (rows, length), generator=generator)
    lengths = torch.randint(3, length + 1, (rows, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long()
    ids = ids * mask + (1 - mask)
    chosen = (torch.rand(rows, length, generator=generator) < 0.3) & mask.bool()
    chosen[2] = False  # an example without any label
    labels = ids.masked_fill(~chosen, -100)
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs |= {"masked.input_ids": ids.masked_fill(chosen, 4), "masked.labels": labels}
    if family == "distilbert":
        ends = torch.randint(3, (2, rows), generator=generator)
        return {**inputs, "start_positions": ends[0], "end_positions": ends[1]}
    if family == "bert":
        return {**inputs, "labels": ids.sum(1) % 2}
    if family == "roberta":
        return {**inputs, "labels": torch.where(chosen, ids % 2, -100)}
    return {**inputs, "labels": labels}


def build(family: str, terms: str, **settings) -> tuple[TermObjective, RecordedStudent]:
    """An objective and its student, in double precision and without dropout."""
    # The decoder of Transformers' own masked autoencoder is a hundred times larger than the encoder here.
    teacher = as_autoencoder(zoo.build("vit")) if family == "vit_mae" else zoo.build_headed(family)
    student = build_student(teacher, StudentShape(layers=2, hidden=24, heads=4))
    models = Models(Anatomy.of(student), Anatomy.of(teacher), ((1, 1),))
    torch.manual_seed(3)
    built = build_terms(parse_terms(terms), models, variants=("clean", "masked"), labelled=True)
    objective = TermObjective(built, student, {"teacher": Teacher(teacher.double())}, **settings)
    return objective, RecordedStudent(student, built).double().eval()


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients of a backward pass, which are then gone."""
    taken = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }
    model.zero_grad(set_to_none=True)
    return taken


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two sets of gradients, over the largest gradient."""
    scale = max(float(value.abs().max()) for value in one.values())
    return max(float((value - other[name]).abs().max()) for name, value in one.items()) / scale
