"""RecAdam against the published code (golden file 07a), and against a loop that spells it out, through the trainer."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from slimformer.errors import TrainingError
from slimformer.train import train
from slimformer.train.loop.sampler import EpochSampler
from slimformer.train.recadam import Annealing, RecAdam
from tests.train.test_trainer import collate, features, options, still


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_golden(golden, case):
    reference = golden("07a_recadam")
    settings = next(each for each in reference.meta["cases"] if each["prefix"] == case)
    weight = nn.Parameter(reference[f"{case}.in.w0"])
    annealing = Annealing(settings["fun"], settings["t0"], settings["k"])
    # A weight of 0 is how the published code has a head learn by Adam alone.
    recalled = settings["w"] > 0
    other = nn.Parameter(torch.zeros(1))  # some weight has to have a start
    starts = {weight: reference[f"{case}.in.pretrained"]} if recalled else {other: torch.zeros(1)}
    optimizer = RecAdam(
        [weight, other],
        starts,
        lr=settings["lr"],
        betas=tuple(settings["betas"]),
        eps=settings["eps"],
        weight_decay=settings["wd"],
        correct_bias=settings["cb"],
        pull=settings["cof"],
        annealing=annealing,
    )
    for step, gradient in enumerate(reference[f"{case}.in.grads"]):
        weight.grad = gradient
        optimizer.step()
        expected = reference[f"{case}.out.w_after_each_step"][step]
        torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-6)
        if recalled:
            assert annealing.at(step + 1) == pytest.approx(float(reference[f"{case}.out.lambda_each_step"][step]))
    state = optimizer.state[weight]
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], reference[f"{case}.out.{name}"], rtol=0, atol=1e-6)


def test_the_trainer_takes_the_steps_of_a_bare_loop(tmp_path):
    """Weight by weight: order of examples, warm-up, clipping, decay, the pull and a head that is not pulled."""
    model, twin = still(), still()
    recalled = {name for name, _ in twin.named_parameters() if not name.startswith("classifier")}
    starts = {weight: weight.detach().clone() for name, weight in model.named_parameters() if name in recalled}
    settings = {"starts": starts, "pull": 50.0, "annealing": Annealing("sigmoid", 3, 0.5)}
    train(
        model, options(warmup=0.5, weight_decay=0.1), features(), collate, tmp_path, optimizer=(RecAdam, settings),
        quiet=True,
    )  # fmt: skip
    decayed = {id(module.weight) for module in twin.modules() if isinstance(module, nn.Linear | nn.Embedding)}
    base = {name: weight.detach().clone() for name, weight in twin.named_parameters()}
    first, second = ({name: torch.zeros_like(weight) for name, weight in base.items()} for _ in range(2))
    data = features()
    for step in range(1, 7):
        sampler = EpochSampler(24, seed=0)
        sampler.set_epoch((step - 1) // 3)
        place = (step - 1) % 3 * 8
        rate = 1e-3 * ((step - 1) / 3 if step <= 3 else (7 - step) / 3)
        twin.train().zero_grad()
        twin(**collate([data[index] for index in list(sampler)[place : place + 8]])).loss.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        learned = 1 / (1 + math.exp(-0.5 * (step - 3)))
        size = rate * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        with torch.no_grad():
            for name, weight in twin.named_parameters():
                first[name] = 0.9 * first[name] + 0.1 * weight.grad
                second[name] = 0.999 * second[name] + 0.001 * weight.grad**2
                move = size * first[name] / (second[name].sqrt() + 1e-8)
                if name in recalled:
                    weight -= learned * move
                    weight -= rate * (1 - learned) * 50.0 * (weight - base[name])
                else:
                    weight -= move
                if id(weight) in decayed:
                    weight -= rate * 0.1 * weight
    for (name, weight), expected in zip(model.named_parameters(), twin.parameters(), strict=True):
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding, which Adam blows up
            torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_starts_are_no_part_of_the_state():
    weight = nn.Parameter(torch.ones(1000))
    optimizer = RecAdam([weight], {weight: torch.zeros(1000)})
    weight.grad = torch.ones(1000)
    optimizer.step()
    state = optimizer.state_dict()
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(state["param_groups"][0]) == {"lr", "betas", "eps", "weight_decay", "params"}


def test_from_its_state_it_goes_on_bit_for_bit():
    def made():
        weight = nn.Parameter(torch.linspace(-1, 1, 7))
        return weight, RecAdam([weight], {weight: torch.zeros(7)}, lr=0.01, pull=20.0, annealing=Annealing(middle=4))

    def step(weight, optimizer, number):
        weight.grad = torch.linspace(0, number, 7).sin()
        optimizer.step()

    weight, optimizer = made()
    for number in range(3):
        step(weight, optimizer, number)
    twin, resumed = made()
    twin.data.copy_(weight.data)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(3, 6):
        step(weight, optimizer, number)
        step(twin, resumed, number)
    assert torch.equal(weight, twin)


@given(st.floats(1e-6, 1e3), st.floats(1e-3, 1e6))
def test_a_pull_ends_at_the_start_at_the_latest(lr, pull):
    weight = nn.Parameter(torch.tensor([3.0, -2.0]))
    start = torch.tensor([1.0, -1.0])
    optimizer = RecAdam([weight], {weight: start}, lr=lr, pull=pull, annealing=Annealing("linear", 1e9))
    weight.grad = torch.zeros(2)
    optimizer.step()
    share = (weight.detach() - start) / torch.tensor([2.0, -1.0])
    assert ((share >= 0) & (share <= 1)).all()


@given(st.sampled_from(["sigmoid", "linear"]), st.floats(1, 1e6), st.floats(1e-3, 10))
def test_learning_takes_over_and_never_falls_back(shape, middle, slope):
    annealing = Annealing(shape, middle, slope)
    weights = [annealing.at(step) for step in (1, 2, 10, 100, 10**4, 10**8)]
    assert weights == sorted(weights)
    assert weights[0] >= 0
    assert weights[-1] == pytest.approx(1)


def test_weights_that_were_replaced_are_refused():
    """As by what cuts them into shards: the pull would be gone unnoticed."""
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(TrainingError, match="none of the weights has a start to be pulled to"):
        RecAdam([nn.Parameter(torch.ones(2))], {weight: weight.detach()})
