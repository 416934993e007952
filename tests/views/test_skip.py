"""Blocks that may be skipped: what the model without them computes, in every family, thread, copy and cache."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

from slimformer import Anatomy
from slimformer.errors import AnatomyError
from slimformer.views import Extent, bake, describe, enable_checkpointing, restore, skip_block, snapshot, strip
from tests import zoo

CAUSAL = ("gpt2", "gpt_neox", "llama", "qwen3")


def outputs(model, family, **more):
    with torch.no_grad():
        return model(**zoo.inputs_for(family), **more)[0]


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_skipped_block_counts_as_removed(family):
    model = zoo.build(family)
    whole = outputs(model, family)
    without = copy.deepcopy(model)
    Anatomy.of(without).keep_blocks([0, 2])
    expected = outputs(without, family)
    depth = skip_block(Anatomy.of(model).blocks[1])
    assert torch.equal(outputs(model, family), whole)
    with depth.at(0):
        assert torch.equal(outputs(model, family), expected)
        assert not torch.equal(expected, whole)
        taken = snapshot(model)
        baked = bake(copy.deepcopy(model))
    assert torch.equal(outputs(model, family), whole)
    assert torch.equal(outputs(taken, family), expected)
    assert torch.equal(outputs(baked, family), expected)
    assert len(Anatomy.of(baked).blocks) == baked.config.num_hidden_layers == 2
    assert torch.equal(outputs(strip(model), family), whole)


@pytest.mark.parametrize("family", ["bert", "vit", "llama", "gpt2", "qwen3"])
def test_a_model_without_some_blocks_is_loaded_by_transformers(family, tmp_path):
    model = zoo.build(family)
    Anatomy.of(model).keep_blocks([0, 2])
    model.save_pretrained(tmp_path)
    again = zoo.bare(family).from_pretrained(tmp_path).eval()
    assert torch.equal(outputs(again, family), outputs(model, family))


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("block", [0, 1])
def test_text_is_generated_without_a_block(family, block):
    """With a cache, by its own and by the blocks that are left, whichever is asked for its length."""
    model = zoo.build_headed(family)
    ids = zoo.inputs_for(family, padding=None)["input_ids"]
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    depth = skip_block(Anatomy.of(model).blocks[block])
    with depth.at(0):
        written = model.generate(ids, **settings)
        searched = model.generate(ids, num_beams=3, **settings)
        slow = model.generate(ids, use_cache=False, **settings)
        baked = bake(copy.deepcopy(model))
    assert torch.equal(written, slow)
    assert torch.equal(written, baked.generate(ids, **settings))
    assert torch.equal(searched, baked.generate(ids, num_beams=3, **settings))
    assert not torch.equal(written, model.generate(ids, **settings))


def test_threads_skip_different_blocks():
    model = zoo.build("bert")
    extent = Extent()
    for block in Anatomy.of(model).blocks:
        skip_block(block, extent)
    values = [(1, 1, 1), (0, 1, 1), (1, 0, 1), (0, 0, 1)]

    def at(value):
        with extent.at(value):
            return outputs(model, "bert")

    expected = [at(value) for value in values]
    start = threading.Barrier(len(values))
    wrong = []

    def serve(number):
        for _ in range(20):
            start.wait()
            if not torch.equal(at(values[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(len(values))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_recomputed_activations_skip_what_the_forward_skipped():
    gradients = []
    for checkpointing in (False, True):
        model = zoo.build("llama").train()
        depth = skip_block(Anatomy.of(model).blocks[1])
        if checkpointing:
            enable_checkpointing(model)
        with depth.at(0):
            loss = outputs_with_gradient(model)
        thread = threading.Thread(target=loss.backward)  # as on a GPU, where it is never the forward's thread
        thread.start()
        thread.join()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert not any(name.startswith("layers.1.") for name in gradients[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def outputs_with_gradient(model):
    return model(**zoo.inputs_for("llama")).last_hidden_state.square().mean()


def test_a_description_restores_what_is_skipped():
    model, fresh = zoo.build("t5"), zoo.build("t5")
    depth = skip_block(Anatomy.of(model).blocks[2])
    depth.set(0)
    restore(fresh, describe(model))
    assert torch.equal(outputs(fresh, "t5"), outputs(model, "t5"))
    assert not torch.equal(outputs(strip(fresh), "t5"), outputs(model, "t5"))


@pytest.mark.parametrize(
    ("family", "reason"),
    [("t5", "relative position biases"), ("modernbert", "no norm"), ("deberta-v2", "`encoder.conv` still changes")],
)
def test_a_block_that_others_need_is_not_skipped(family, reason):
    model = zoo.build(family)
    with pytest.raises(AnatomyError, match=rf"block 0 of `{family}` cannot be skipped: .*{reason}.*; skip others"):
        skip_block(Anatomy.of(model).blocks[0])
    with pytest.raises(AnatomyError, match="cannot be skipped"):
        Anatomy.of(model).keep_blocks([1, 2])


def test_at_least_one_block_is_kept():
    with pytest.raises(AnatomyError, match="no block of 3 would be left"):
        Anatomy.of(zoo.build("bert")).keep_blocks([])
