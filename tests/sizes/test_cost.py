"""What an allocation costs: as the extracted model has it, and as torch counts it."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from slimformer.sizes import Allocation, Costs, extract, make_elastic, name_sizes
from tests import zoo

SIZES = name_sizes([0.25, 0.5, 1], heads=[0.5, 0.5, 1])


def random_allocation(elastic, seed):
    draw = random.Random(seed)
    return Allocation(tuple(draw.choice(elastic.sizes) for _ in elastic.blocks))


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_parameters_and_bytes_are_those_of_the_extracted_model(family):
    model = zoo.build_headed(family) if family != "t5" else zoo.build(family)
    pinned = family in ("mpnet", "t5")
    elastic = make_elastic(model, name_sizes([0.25, 0.5, 1]) if pinned else SIZES, skip=True)
    parameters, size = Costs.of(model, "parameters"), Costs.of(model, "bytes")
    allocation = random_allocation(elastic, 3).replaced(1, None)
    extracted = extract(model, allocation)
    assert parameters.total(allocation) == sum(p.numel() for p in extracted.parameters())
    assert size.total(allocation) == 4 * parameters.total(allocation)
    assert parameters.total(elastic.largest) == sum(p.numel() for p in zoo_parameters(family))


def zoo_parameters(family):
    return (zoo.build_headed(family) if family != "t5" else zoo.build(family)).parameters()


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "vit", "modernbert", "gpt_neox"])
def test_flops_are_what_torch_counts(family):
    model = zoo.build_headed(family).eval()
    model.set_attn_implementation("eager")
    elastic = make_elastic(model, SIZES)
    costs = Costs.of(model, "flops", length=8)  # an image has 17 of its own
    inputs = {"pixel_values": torch.zeros(1, 3, 16, 16)} if family == "vit" else {"input_ids": torch.ones(1, 8).long()}
    for size in elastic.names:
        with FlopCounterMode(display=False) as counter, elastic.at(size):
            model(**inputs)
        # Rotary angles are a small product too, which belongs to no matrix.
        assert costs.total(elastic.allocation(size)) == pytest.approx(counter.get_total_flops(), rel=0.005)
