"""Masked weights kept ready: filled by whatever is asked, those used longest ago let go of, within the limit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch

from slimformer.bank import MaskBank
from tests.bank.shelf import QUESTIONS, TEXTS

#: Masked weights of one task: block 1 of the base with four matrices of 32 x 32 and two of 32 x 64, and the pooler.
TASK = 4 * (4 * 1024 + 2 * 2048) + 4 * 1024


def filled(shelf, limit, kinds=("classification", "regression")):
    """A bank with two tasks under two names each."""
    bank = MaskBank(shelf / "base", memory_limit=limit)
    for kind in kinds:
        bank.add(kind, shelf / kind)
        bank.add(f"{kind} again", shelf / kind)
    return bank


def weight(bank, name):
    """Where the masked weight of a task is."""
    return bank.use(name).bert.encoder.layer[1].output.dense.weight.data_ptr()


def test_predict_makes_weights_ready(shelf):
    bank = filled(shelf, 2 * TASK)
    assert bank.ready == ()
    bank.predict({"classification": TEXTS, "regression": []})
    assert bank.ready == ("classification",)
    assert bank.memory()["weights"] == TASK
    before = weight(bank, "classification")
    bank.logits({"classification": TEXTS})
    assert weight(bank, "classification") == before


def test_nothing_is_kept_without_a_limit_or_below_what_a_task_takes(shelf):
    for limit in (0, TASK - 1):
        bank = filled(shelf, limit)
        bank.predict({"classification": TEXTS, "regression": TEXTS})
        assert (bank.ready, bank.memory()["weights"]) == ((), 0)


def test_a_limit_that_is_lowered_holds_from_the_next_call_on(shelf):
    bank = filled(shelf, 2 * TASK)
    bank.predict({"classification": TEXTS[:1], "regression": TEXTS[:1]})
    bank.memory_limit = TASK
    bank.predict({"regression": TEXTS[:1]})
    assert bank.ready == ("regression",)
    bank.memory_limit = 0
    bank.predict({"regression": TEXTS[:1]})
    assert bank.memory()["weights"] == 0


def test_those_asked_longest_ago_make_room(shelf):
    bank = filled(shelf, 2 * TASK)
    for name in ("classification", "regression", "classification"):
        bank.predict({name: TEXTS[:1]})
    assert bank.ready == ("regression", "classification")
    bank.predict({"regression again": TEXTS[:1]})
    assert bank.ready == ("classification", "regression again")
    bank.use("classification")
    bank.logits({"classification again": TEXTS[:1]})
    assert bank.ready == ("classification", "classification again")
    assert bank.memory()["weights"] == 2 * TASK


def test_a_call_for_more_tasks_than_there_is_room_for_keeps_what_is_ready(shelf):
    bank = filled(shelf, 2 * TASK + 5)
    asked = dict.fromkeys(bank.tasks, TEXTS)
    bank.predict(asked)
    first = bank.ready
    assert first == ("classification", "classification again")
    places = [weight(bank, name) for name in first]
    bank.predict(asked)
    assert [weight(bank, name) for name in first] == places


def test_weights_of_a_task_that_is_removed_or_replaced_are_let_go_of(shelf):
    bank = filled(shelf, 2 * TASK)
    bank.predict({"classification": TEXTS, "regression": TEXTS})
    bank.remove("regression")
    bank.add("classification", shelf / "regression", replace=True)
    assert (bank.ready, bank.memory()["weights"]) == ((), 0)
    asked = bank.logits({"classification": TEXTS, "regression again": TEXTS})
    assert np.array_equal(asked["classification"], asked["regression again"])


def assert_same_bits(found, expected):
    for name, rows in expected.items():
        for row, other in zip(found[name], rows, strict=True):
            for one, another in zip(row, other, strict=True) if isinstance(other, tuple) else [(row, other)]:
                assert np.array_equal(np.asarray(one).view(np.int32), np.asarray(another).view(np.int32))


@pytest.mark.parametrize("batch_size", [3, 32])
def test_answers_have_the_same_bits_whatever_is_ready(shelf, batch_size):
    bank = MaskBank(shelf / "base")
    for kind in QUESTIONS:
        bank.add(kind, shelf / kind)
    expected = bank.logits(QUESTIONS, batch_size=batch_size)
    assert bank.ready == ()
    for limit in (TASK, 2 * TASK, 10**9):
        bank.memory_limit = limit
        for kind in QUESTIONS:  # some of them ready, others not
            bank.predict({kind: QUESTIONS[kind][:1]})
            assert_same_bits(bank.logits(QUESTIONS, batch_size=batch_size), expected)
            assert bank.memory()["weights"] <= limit
    assert {*bank.ready} == {*QUESTIONS} - {"pruned"}  # whose narrower weights are its own in any case


def test_eight_threads(shelf):
    """Each asks for tasks in an order of its own, with room for two of four."""
    bank = filled(shelf, 0)
    names = bank.tasks
    quiet = {
        size: [bank.logits(dict.fromkeys(_turned(names, start)[:size], TEXTS)) for start in range(8)] for size in (1, 3)
    }
    bank.memory_limit = 2 * TASK
    over, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            over.extend(size for size in [bank.memory()["weights"]] if size > bank.memory_limit)

    def ask(start):
        torch.set_num_threads(1)
        for turn in range(12):
            size = 3 if turn % 2 else 1
            asked = dict.fromkeys(_turned(names, start)[:size], TEXTS)
            assert_same_bits(bank.logits(asked), quiet[size][start])

    with ThreadPoolExecutor(9) as pool:
        watcher = pool.submit(watch)
        askers = [pool.submit(ask, start) for start in range(8)]
        wait(askers)
        stop.set()
    assert [each.exception() for each in (*askers, watcher)] == [None] * 9
    assert not over
    assert len(bank.ready) == 2


def _turned(names, start):
    start %= len(names)
    return [*names[start:], *names[:start]]
