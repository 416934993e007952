from __future__ import annotations

import pytest
import torch

from slimformer import Anatomy
from slimformer.anatomy import Census
from slimformer.views import QuantizedView, attach
from tests import zoo


@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("build", [zoo.build, zoo.build_headed])
def test_parts_add_up_to_the_model(family, build):
    model = build(family)
    census = Census.of(Anatomy.of(model))
    assert census.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert census.bytes == sum(parameter.numel() * 4 for parameter in model.parameters())
    counts = {part.part: part.parameters for part in census.parts}
    assert counts["down"] == 3 * sum(p.numel() for p in Anatomy.of(model).blocks[0].down.module.parameters())


def test_each_part_by_hand():
    counts = {part.part: part.parameters for part in Census.of(Anatomy.of(zoo.build_headed("bert"))).parts}
    assert counts == {
        "word embedding": 99 * 48,
        "other embeddings": 64 * 48 + 2 * 48 + 2 * 48,
        "query": 3 * (48 * 48 + 48),
        "key": 3 * (48 * 48 + 48),
        "value": 3 * (48 * 48 + 48),
        "output": 3 * (48 * 48 + 48),
        "up": 3 * (48 * 64 + 64),
        "down": 3 * (48 * 64 + 48),
        "norms": 3 * 4 * 48,
        "pooler": 48 * 48 + 48,
        "head": 48 * 2 + 2,
    }


def test_fused_parts_are_named_together_and_ties_counted_once():
    census = Census.of(Anatomy.of(zoo.build_headed("gpt2")))
    assert {"query+key+value", "word embedding"} <= {part.part for part in census.parts}
    assert census.tied == ("head",)
    masked_lm = Census.of(Anatomy.of(zoo.build_headed("xlm-roberta")))
    assert masked_lm.tied == ("head",)
    assert {part.part: part.parameters for part in masked_lm.parts}["word embedding"] == 99 * 48


def test_works_on_the_meta_device_and_under_views():
    with torch.device("meta"):
        model = zoo.HEADED["llama"](zoo.CONFIGS["llama"]())
    assert Census.of(Anatomy.of(model)).parameters == sum(parameter.numel() for parameter in model.parameters())
    viewed = zoo.build("bert")
    plain = Census.of(Anatomy.of(viewed))
    attach(Anatomy.of(viewed).blocks[0].query, QuantizedView("ternary", "matrix"))
    assert Census.of(Anatomy.of(viewed)) == plain
