"""Snapshots: what views show, computed once, while the model goes on as it was."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from slimformer.anatomy import Anatomy
from slimformer.inference.evaluation import predict
from slimformer.tasks import get_task
from slimformer.views import (
    MaskView,
    QuantizedView,
    attach,
    attached,
    round_activations,
    slice_heads,
    slice_neurons,
    snapshot,
    uniform_scores,
)
from slimformer.views.rounding import Rounding
from tests import corpus, zoo


def outputs(model, family):
    with torch.no_grad():
        return model(**zoo.inputs_for(family)).last_hidden_state


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gpt_neox"])
def test_a_snapshot_computes_what_the_model_shows_and_leaves_it_alone(family):
    model = zoo.build(family)
    block = Anatomy.of(model).blocks[1]
    attach(block.output, QuantizedView("ternary", "row"))
    attach(block.down, MaskView(uniform_scores(block.down.shape, 0.3)))
    widths = slice_neurons(block), slice_heads(block)
    with widths[0].at(24), widths[1].at(1):
        taken, expected = snapshot(model.train()), outputs(model.eval(), family)
    model.train()
    assert next(attached(taken), None) is None
    torch.testing.assert_close(outputs(taken, family), expected)
    assert len(list(attached(model))) >= 4
    assert model.training
    assert not taken.training
    assert outputs(model.eval(), family).shape == expected.shape
    assert not torch.allclose(outputs(model, family), expected)  # at its full width again


def test_rounded_activations_stay_rounded():
    model = zoo.build("bert")
    before = outputs(model, "bert")
    round_activations(model, Rounding(bits=4))
    assert not torch.equal(outputs(model, "bert"), before)
    assert torch.equal(outputs(snapshot(model), "bert"), outputs(model, "bert"))


def test_threads_measure_one_model_at_other_widths(tmp_path):
    """Each gets the weights of its own width, computed once, though another one evaluates at the same time."""
    corpus.model_folder(tmp_path / "base")
    data = get_task("classification").load(corpus.data_folder(tmp_path / "data"), ["dev"], labels=["no", "yes"])
    processor = corpus.tokenizer()
    features = data.prepare("dev", processor, 16)
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = zoo.enliven(AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=2))
    width = slice_neurons(Anatomy.of(model).blocks[0])
    sizes = (2, 8, 24, 64)
    start = threading.Barrier(len(sizes))

    def measure(size, together):
        with width.at(size):
            if together:
                start.wait()
            return [predict(model, data, features, processor, 8) for _ in range(4)]

    alone = [measure(size, together=False) for size in sizes]
    with ThreadPoolExecutor(len(sizes)) as pool:
        mixed = list(pool.map(lambda size: measure(size, together=True), sizes))
    assert not np.array_equal(alone[0][0], alone[-1][0])
    for expected, arrays in zip(alone, mixed, strict=True):
        assert all(np.array_equal(array, expected[0]) for array in arrays)


def test_a_model_in_training_is_left_in_training_while_it_is_measured():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    taken = snapshot(model)
    assert [module.training for module in model.modules()] == [True] * 3
    assert [module.training for module in taken.modules()] == [False] * 3
    assert taken[0].weight is model[0].weight


def test_a_snapshot_of_a_model_in_mixed_precision_computes_without_dropout():
    """Mixed precision puts a `forward` on the model itself, and that of a copy must not be the original's."""
    model = zoo.build("bert").train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    AcceleratorState._reset_state(reset_partial_state=True)  # as every run does, before it says how it computes
    Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert "forward" in model.__dict__
    taken = snapshot(model)
    assert torch.equal(outputs(taken, "bert"), outputs(taken, "bert"))
    assert not torch.equal(outputs(model, "bert"), outputs(model, "bert"))


def test_a_hook_on_a_snapshot_is_not_one_on_the_model():
    model = zoo.build("bert").eval()
    seen = []
    snapshot(model).register_forward_hook(lambda *_: seen.append(1))
    outputs(model, "bert")
    assert not seen
