"""Views as plain data: every view that can be attached is described and restored."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import slimformer.methods.mask.scores  # noqa: F401 (methods may bring views of their own)
from slimformer.errors import ViewError
from slimformer.views import (
    MaskView,
    QuantizedView,
    ScheduledMask,
    SliceView,
    View,
    Width,
    attach,
    attached,
    describe,
    restore,
    uniform_scores,
)

#: A view of every class, on a weight of 6 x 8.
EXAMPLES = {
    "quantized": lambda: QuantizedView("int4", "group", 4),
    "quantized with a clip": lambda: QuantizedView("ternary", "row", clip=0.2),
    "mask": lambda: MaskView(uniform_scores((6, 8), 0.5), 0.02),
    "mask by tiles": lambda: MaskView(uniform_scores((1, 4), 0.5)),
    "scheduled mask": lambda: ScheduledMask(uniform_scores((6, 8), 0.1), 0.01, 0.1, 0.5),
    "scheduled mask of groups": lambda: ScheduledMask(uniform_scores((6, 8), 0.1), 0.01, 0.1, 0.5, (1, 4)),
    "scheduled mask by threshold": lambda: ScheduledMask(uniform_scores((1, 8), 0.3), 0.01, 0.1),
    "slice": lambda: SliceView(Width(3, 2), unit=2),
    "slice of columns": lambda: SliceView(Width(4, 3), "columns", chunks=2),
}


def classes(root=View):
    return {root, *(each for child in root.__subclasses__() for each in classes(child))} - {View}


def test_every_view_has_an_example():
    ours = {each for each in classes() if each.__module__.startswith("slimformer.")}
    assert {type(make()) for make in EXAMPLES.values()} == ours
    assert len({each.kind for each in ours}) == len(ours)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_described_is_restored(name, training):
    torch.manual_seed(0)
    linear = nn.Linear(8, 6).train(training)
    attach(linear, EXAMPLES[name]())
    for module in linear.modules():
        if isinstance(module, ScheduledMask):
            module.progress.fill_(0.4)
    description = json.loads(json.dumps(describe(linear)))
    fresh = restore(nn.Linear(8, 6), description).train(training)
    fresh.load_state_dict(linear.state_dict())
    one, other = (next(attached(model)).view for model in (linear, fresh))
    assert type(one) is type(other)
    assert other.spec() == one.spec()
    assert describe(fresh) == describe(linear)
    assert torch.equal(fresh.weight, linear.weight)


def test_a_mask_stands_on_no_other_mask():
    for first in ("mask", "scheduled mask"):
        linear = nn.Linear(8, 6)
        attach(linear, EXAMPLES[first]())
        with pytest.raises(ViewError, match=f"already under a {first} view"):
            attach(linear, EXAMPLES["mask" if first != "mask" else "scheduled mask"]())
