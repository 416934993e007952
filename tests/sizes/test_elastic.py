"""Nested sizes: what is sliced computes what is extracted, in every family, thread and copy."""

from __future__ import annotations

import copy
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from slimformer import Anatomy
from slimformer.errors import SizeError, ViewError
from slimformer.sizes import Allocation, Elastic, extract, make_elastic, make_plain, name_sizes
from slimformer.views import attached, carried, enable_checkpointing, restore_output, snapshot
from tests import zoo

NARROW = {"neurons": name_sizes([0.25, 0.5, 1]), "heads": name_sizes([0.25, 0.5, 1], heads=[0.5, 0.5, 1])}
DEEP = {**NARROW, "depth": name_sizes([0.25, 0.5, 1], depth=[0.5, 1, 1])}


def outputs(model, family):
    with torch.no_grad():
        return model(**zoo.inputs_for(family))[0]


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def pinned(family, nesting):
    return nesting == "heads" and Anatomy.of(zoo.build(family)).family.heads_pinned_by is not None


@pytest.mark.parametrize("nesting", DEEP)
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_slice_computes_what_the_extracted_model_computes(family, nesting):
    if pinned(family, nesting):
        pytest.skip("heads of this family cannot be taken from single blocks")
    model = zoo.build(family)
    whole = outputs(model, family)
    elastic = make_elastic(model, DEEP[nesting])
    same(outputs(model, family), whole)
    for size in (*elastic.names, "M,S,XL"):
        with elastic.at(size):
            sliced = outputs(model, family)
        same(outputs(extract(model, size), family), sliced)
    same(outputs(model, family), whole)
    with elastic.at("S"):
        assert not torch.allclose(outputs(model, family), whole)


@pytest.mark.parametrize("nesting", ["neurons", "depth"])
@pytest.mark.parametrize("family", ["bert", "vit", "llama", "gpt2"])
def test_an_extracted_model_of_one_width_is_loaded_by_transformers(family, nesting, tmp_path):
    model = zoo.build(family)
    elastic = make_elastic(model, DEEP[nesting])
    extract(model, "S").save_pretrained(tmp_path)
    again = zoo.bare(family).from_pretrained(tmp_path).eval()
    with elastic.at("S"):
        same(outputs(again, family), outputs(model, family))
    assert sum(p.numel() for p in again.parameters()) < sum(p.numel() for p in zoo.build(family).parameters())


def test_the_smallest_size_of_stories_computes_an_eighth_of_its_feed_forward_layers(stories):
    model = AutoModelForCausalLM.from_pretrained(stories)
    elastic = make_elastic(model)
    ids = torch.ones(1, 16, dtype=torch.long)

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids)
        counts = counter.get_flop_counts()
        return sum(sum(ops.values()) for name, ops in counts.items() if name.endswith(".mlp"))

    whole = flops()
    with elastic.at("S"):
        assert flops() / whole == pytest.approx(1 / 8, rel=0.01)


def test_threads_at_other_sizes_write_what_each_would_write_alone():
    model = zoo.build_headed("llama")
    elastic = make_elastic(model, NARROW["heads"], skip=True)
    ids = zoo.inputs_for("llama", padding=None)["input_ids"]
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    sizes = ["S", "M", "XL", "S,0,XL"]

    def answer(size):
        with elastic.at(size), torch.no_grad():
            return model.generate(ids, **settings), model(input_ids=ids).logits

    expected = {size: answer(size) for size in sizes}
    requests = list(itertools.chain.from_iterable(itertools.repeat(sizes, 8)))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, requests))
    for size, (written, logits) in zip(requests, answers, strict=True):
        assert torch.equal(written, expected[size][0])
        assert torch.equal(logits, expected[size][1])
    assert not torch.equal(expected["S"][1], expected["XL"][1])


def test_one_size_is_in_force_at_a_time():
    """All blocks change together: a forward never sees half of one size and half of another."""
    model = zoo.build("bert")
    elastic = make_elastic(model, NARROW["neurons"])
    elastic.set("S")
    small = outputs(model, "bert")
    with elastic.at("XL"):
        assert [block.neurons.value for block in elastic.blocks] == [64] * 3
        with elastic.at("M"):
            assert [block.neurons.value for block in elastic.blocks] == [32] * 3
        inside = carried(lambda: outputs(model, "bert"))
        thread = threading.Thread(target=lambda: results.append((inside(), outputs(model, "bert"))))
        results: list[tuple[torch.Tensor, torch.Tensor]] = []
        thread.start()
        thread.join()
        assert torch.equal(results[0][0], outputs(model, "bert"))
        assert torch.equal(results[0][1], small)


def test_a_copy_has_its_own_size():
    model = zoo.build("bert")
    elastic = make_elastic(model, NARROW["neurons"])
    with elastic.at("S"):
        copied = copy.deepcopy(model)
        expected = outputs(model, "bert")
    assert torch.equal(outputs(copied, "bert"), expected)
    Elastic.of(copied).set("M")
    assert [block.neurons.value for block in elastic.blocks] == [64] * 3
    assert [block.neurons.value for block in Elastic.of(copied).blocks] == [32] * 3


def test_gradients_with_checkpointing_are_those_of_the_size():
    gradients = []
    for checkpointing in (False, True):
        model = zoo.build("llama").train()
        elastic = make_elastic(model, NARROW["neurons"])
        if checkpointing:
            enable_checkpointing(model)
        with elastic.at("S,XL,M"):
            loss = model(**zoo.inputs_for("llama"))[0].square().mean()
        loss.backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
    up = next(gradient for name, gradient in gradients[0].items() if name.startswith("layers.0.mlp.up_proj"))
    assert up[:16].abs().sum() > 0
    assert up[16:].abs().sum() == 0


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_what_is_saved_is_the_largest_size(family, tmp_path):
    """Whatever is in use; the sizes stay, and a plain model is saved as any other."""
    model = zoo.build(family)
    whole = outputs(model, family)
    elastic = make_elastic(model, NARROW["heads"], skip=True)
    for name, each in (("itself", model), ("copy", copy.deepcopy(model))):
        with elastic.at("S"):
            each.save_pretrained(tmp_path / name)
        again, report = zoo.bare(family).from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(report.values())
        assert torch.equal(outputs(again.eval(), family), whole)
    with elastic.at("S"):
        small = outputs(model, family)
    same(outputs(extract(model, "S"), family), small)
    make_plain(model).save_pretrained(tmp_path / "plain")
    assert torch.equal(outputs(zoo.bare(family).from_pretrained(tmp_path / "plain").eval(), family), whole)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("XXL", r"there is no size `XXL`; the model has S \(0.25\), M \(0.5\), XL \(1\)"),
        (0.3, r"there is no size `0.3`"),
        ("S,M", r"names 2 blocks, and the model has 3"),
        ("0,0,0", r"skips every block; leave at least one"),
        ("S,0,M", r"block 1 cannot be skipped in this model; give it a size of S, M, XL"),
        (Allocation(()), r"has 0 blocks, and the model has 3"),
    ],
)
def test_a_size_the_model_has_not_is_refused(size, message):
    elastic = make_elastic(zoo.build("bert"), NARROW["neurons"])
    with pytest.raises(SizeError, match=message), elastic.at(size):
        pass


def test_a_cache_serves_sizes_with_the_same_heads_and_blocks():
    model = zoo.build_headed("llama")
    elastic = make_elastic(model, NARROW["heads"], skip=True)
    elastic.share_cache("S", "M")
    with pytest.raises(SizeError, match="cannot serve both `S` and `XL`: block 0 has key-value heads 1 and 2"):
        elastic.share_cache("S", "XL")
    with pytest.raises(SizeError, match="block 1 has key-value heads 2 and none"):
        elastic.share_cache("XL", "XL,0,XL")


def test_sizes_by_other_names():
    elastic = make_elastic(zoo.build("bert"))
    assert elastic.names == ("S", "M", "L", "XL")
    assert elastic.allocation("s") == elastic.allocation(0.125) == elastic.allocation("0.125")
    assert str(elastic.allocation("S")) == "S"
    assert str(elastic.allocation(["S", 1, "L"])) == "S,XL,L"
    many = name_sizes([0.1, 0.2, 0.3, 0.4, 0.5, 1])
    assert [size.name for size in many] == ["0.1", "0.2", "0.3", "0.4", "0.5", "1"]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"neurons": [0.5, 0.25, 1]}, "shares rise"),
        ({"neurons": [0.5, 0.75]}, "end with 1"),
        ({"neurons": [0, 1]}, "lie above 0"),
        ({"neurons": []}, "at least one"),
        ({"neurons": [0.5, 1], "heads": [1]}, "`heads` has 1 shares for 2 sizes"),
        ({"neurons": [1, 1]}, "two sizes are alike"),
    ],
)
def test_shares_that_make_no_sizes_are_refused(shares, message):
    with pytest.raises(SizeError, match=message):
        name_sizes(**shares)


def test_a_model_is_made_elastic_once():
    model = zoo.build("bert")
    with pytest.raises(SizeError, match="has one size only"):
        Elastic.of(model)
    assert make_elastic(model) is Elastic.of(model)
    with pytest.raises(SizeError, match="elastic already"):
        make_elastic(model)


MATRYOSHKA = name_sizes([0.25, 0.5, 1], output=[0.25, 0.5, 1])


@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_outputs_of_a_size_are_the_first_dimensions(family, tmp_path):
    model = zoo.build(family)
    whole = outputs(model, family)
    elastic = make_elastic(model, MATRYOSHKA)
    same(outputs(model, family), whole)
    width = whole.shape[-1]
    with elastic.at("S"):
        small = outputs(model, family)
    assert small.shape == (*whole.shape[:-1], width // 4)
    with elastic.at("S,M,S"):
        assert outputs(model, family).shape[-1] == width // 2  # those of the largest size in it
    extracted = extract(model, "S")
    same(outputs(extracted, family), small)
    extracted.save_pretrained(tmp_path)
    again = zoo.bare(family).from_pretrained(tmp_path).eval()
    same(outputs(again, family)[..., : width // 4], small)  # Transformers alone shows all dimensions
    restore_output(again)
    same(outputs(again, family), small)
    same(outputs(snapshot(again), family), small)
    same(outputs(copy.deepcopy(again), family), small)
    same(outputs(make_plain(model), family), whole)


def test_a_model_that_shows_few_dimensions_can_be_nested_and_made_plain_again():
    model = zoo.build("bert")
    make_elastic(model, MATRYOSHKA)
    half = extract(model, "M")
    elastic = make_elastic(half, MATRYOSHKA)
    with elastic.at("S"):
        assert outputs(half, "bert").shape[-1] == 6
    assert outputs(half, "bert").shape[-1] == 24
    assert outputs(make_plain(half), "bert").shape[-1] == 24


def test_outputs_of_a_head_are_not_nested():
    model = zoo.build_headed("bert")
    with pytest.raises(ViewError, match="those of its head, and nested dimensions are those of embeddings"):
        make_elastic(model, MATRYOSHKA)
    assert next(attached(model), None) is None
    make_elastic(model)  # nothing is left of the attempt


@pytest.mark.parametrize("dimensions", [0, 49, "8", True])
def test_a_config_that_tells_of_impossible_dimensions_is_refused(dimensions):
    model = zoo.build("bert")
    model.config.output_dimensions = dimensions
    with pytest.raises(ViewError, match="`output_dimensions` of the config is"):
        restore_output(model)
