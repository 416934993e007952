"""A model that is divided, put together for a while, and put together for good: what it is before and after.

One process is enough for that: it holds all parts.
"""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule

from slimformer.anatomy import Anatomy
from slimformer.errors import ConfigError, TrainingError
from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.quantize.config import QuantizeConfig
from slimformer.objectives import Models, RecordedStudent, build_terms, parse_terms
from slimformer.train.checkpoints import read_metadata, read_weights, write_weights
from slimformer.train.sharding.launching import check_launch
from slimformer.train.sharding.plan import units
from slimformer.train.sharding.sharded import HOOKS, shard
from slimformer.train.sharding.state import is_sharded, load_optimizer, place, read_optimizer
from slimformer.views import MaskView, QuantizedView, ScheduledMask, attach, uniform_scores
from tests import zoo
from tests.parameters import slow

CPU = torch.device("cpu")


@pytest.fixture
def alone():
    """A group of processes with one member."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def viewed():
    """A model under views, with a hook of somebody else's."""
    model = zoo.build_headed("bert").eval()
    blocks = Anatomy.of(model).blocks
    attach(blocks[0].matrices["query"], QuantizedView("ternary", "row"))
    attach(blocks[1].matrices["key"], MaskView(uniform_scores(blocks[1].matrices["key"].shape, 0.3)))
    blocks[0].module.register_forward_hook(lambda module, args, output: None)
    return model


def described(model):
    """Everything about a model that dividing it touches."""
    return [
        (
            name,
            type(module),
            sorted(vars(module)),
            [(key, id(weight), weight.requires_grad) for key, weight in module._parameters.items()],
            [list(getattr(module, hooks).items()) for hooks in HOOKS],
        )
        for name, module in model.named_modules()
    ]


def step(model, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(**zoo.inputs_for("bert")).logits.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_model_is_itself_again(alone):
    model, twin = viewed(), viewed()
    twin.load_state_dict(model.state_dict())
    before = described(model)
    for _ in range(2):  # once more: nothing is left that stands in the way
        sharded = shard(model, CPU)
        assert all(is_sharded(weight) for weight in model.parameters())
        step(model)
        sharded.undo()
        step(twin)
        assert described(model) == before
        same(model.state_dict(), twin.state_dict())
        same(copy.deepcopy(model).state_dict(), twin.state_dict())


def test_it_is_whole_for_a_while_and_learns_on(alone):
    model, twin = viewed(), viewed()
    twin.load_state_dict(model.state_dict())
    before = described(model)
    sharded = shard(model, CPU)
    optimizer, other = step(model), step(twin)
    with sharded.assembled():
        assert described(model) == before
        same(model.state_dict(), twin.state_dict())
    assert isinstance(model, FSDPModule)
    assert all(is_sharded(weight) for weight in model.parameters())
    step(model, optimizer)
    step(twin, other)
    sharded.undo()
    same(model.state_dict(), twin.state_dict())


def test_files_are_the_same_and_read_into_both(alone, tmp_path):
    model, twin = (hf.BertForMaskedLM(zoo.CONFIGS["bert"]()) for _ in range(2))  # its table has two names
    twin.load_state_dict(model.state_dict())
    write_weights(twin, tmp_path / "whole")
    sharded = shard(model, CPU)
    write_weights(model, tmp_path / "parts", writes=False)
    assert not (tmp_path / "parts").exists()
    write_weights(model, tmp_path / "parts")
    assert (tmp_path / "parts").stat().st_size == (tmp_path / "whole").stat().st_size
    same(load_file(tmp_path / "parts"), load_file(tmp_path / "whole"))
    assert read_metadata(tmp_path / "parts") == read_metadata(tmp_path / "whole")  # its order in the file is random
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    read_weights(model, tmp_path / "whole")
    sharded.undo()
    same(model.state_dict(), twin.state_dict())


def test_an_optimizer_goes_on_divided_or_not(alone, tmp_path):
    model, twin = (zoo.build_headed("bert").eval() for _ in range(2))
    twin.load_state_dict(model.state_dict())
    whole = step(twin)
    torch.save(whole.state_dict(), tmp_path / "optimizer.pt")  # as a run without parts writes it
    model.load_state_dict(twin.state_dict())
    sharded = shard(model, CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    load_optimizer(optimizer, torch.load(tmp_path / "optimizer.pt", weights_only=True))
    assert all(is_sharded(entries["exp_avg"]) for entries in optimizer.state.values())
    step(model, optimizer)
    step(twin, whole)
    ours, theirs = read_optimizer(optimizer), whole.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    for number, entries in theirs["state"].items():
        same(ours["state"][number], entries)
    sharded.undo()
    same(model.state_dict(), twin.state_dict())


def test_blocks_are_gathered_one_after_the_other():
    model = zoo.build_headed("bert")
    blocks = [block.module for block in Anatomy.of(model).blocks]
    assert units(model) == blocks
    terms = build_terms(parse_terms("hidden:1"), Models(Anatomy.of(model), Anatomy.of(model), ((0, 0),)))
    assert units(RecordedStudent(model, terms)) == blocks
    assert units(nn.Linear(2, 2)) == []
    blocks[0].extra = model.classifier  # a weight of two owners stays with the whole
    assert units(model) == blocks[1:]


def test_a_mask_shows_what_it_ends_with_after_each_look(alone):
    """Divided scores change without their version being counted."""
    view = ScheduledMask(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 0.01, start=0.1, target=0.5)
    assert view.eval().final_bits().tolist() == [[0, 0, 1, 1]]
    version = view.scores._version
    with torch.autograd._unsafe_preserve_version_counter(view.scores), torch.no_grad():
        view.scores.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    assert view.scores._version == version
    assert view.train().eval().final_bits().tolist() == [[1, 1, 0, 0]]


def test_two_names_of_a_weight_lie_at_one_place(alone):
    layer = nn.Linear(2, 2)
    layer.other = layer.weight
    assert place(layer.weight) == place(layer.other) != place(layer.bias)
    shard(layer, CPU)
    assert place(layer.weight) == place(layer.other) != place(layer.bias)


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        (FinetuneConfig, {"keep_close": "recadam"}, "`keep_close` is `recadam.*leave out one of both"),
        (QuantizeConfig, {"balance": "auto"}, "`balance` is `auto`.*leave out `shard`"),
    ],
)
def test_what_needs_whole_weights_is_refused(config, settings, words):
    config.make(settings)
    with pytest.raises(ConfigError, match=words):
        config.make({**settings, "shard": True})


@pytest.mark.parametrize(("name", "shard"), [("FSDP", False), ("FSDP", True), ("DEEPSPEED", True)])
def test_a_model_is_not_divided_by_others(name, shard, monkeypatch):
    check_launch(shard)
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    with pytest.raises(TrainingError, match=f"`ACCELERATE_USE_{name}` is `true`"):
        check_launch(shard)


@pytest.mark.parametrize("family", slow(zoo.FAMILIES, but=("bert", "vit_mae")))
def test_every_family_computes_the_same(family, alone):
    """Blocks by themselves, and all else with the whole, whatever the family is made of."""
    model, twin = (zoo.build(family).eval() for _ in range(2))
    twin.load_state_dict(model.state_dict())
    inputs, optimizers = zoo.inputs_for(family), []
    sharded = shard(model, CPU)
    for each in (model, twin):
        optimizers.append(torch.optim.SGD(each.parameters(), lr=1e-2))
        for _ in range(2):
            torch.manual_seed(0)  # a masked autoencoder draws what it hides
            each(**inputs).last_hidden_state.square().mean().backward()
            optimizers[-1].step()
            optimizers[-1].zero_grad()
    sharded.undo()
    for name, weight in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=1e-6, msg=name)
