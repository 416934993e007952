"""How many tokens are drafted."""

from __future__ import annotations

import random

import pytest

from slimformer.errors import ConfigError
from slimformer.sizes import Draft
from slimformer.sizes.decoding.length import EVERY, PROBE, DraftLength


def lengths(draft, rate, steps=200):
    """The lengths chosen while each drafted token is accepted with a certain chance."""
    length, chosen, chance = DraftLength(draft), [], random.Random(0)
    for _ in range(steps):
        count = length.next()
        chosen.append(count)
        if count:
            accepted = next((place for place in range(count) if chance.random() >= rate), count)
            length.observe(accepted, accepted + (accepted < count))
    return chosen


def test_more_is_drafted_where_more_is_accepted():
    assert lengths(Draft("S", cost=0.2, verification=1), rate=1.0)[-1] == 8
    assert lengths(Draft("S", cost=0.2, verification=1, longest=5), rate=1.0)[-1] == 5
    assert 1 <= sum(lengths(Draft("S", cost=0.2, verification=1), rate=0.6)[-50:]) / 50 <= 3


def test_a_draft_that_gets_better_is_found_out():
    length = DraftLength(Draft("S", cost=0.2, verification=1))
    for _ in range(50):
        length.observe(0, 1)
    assert length.next() == 0
    chosen = []
    for _ in range(400):
        chosen.append(length.next())
        if chosen[-1]:
            length.observe(chosen[-1], chosen[-1])
    assert chosen[-1] == 8


def test_where_nothing_is_accepted_drafting_stops_but_for_a_try_now_and_then():
    chosen = lengths(Draft("S"), rate=0.0)[20:]
    assert set(chosen) == {0, PROBE}
    assert chosen.count(PROBE) == pytest.approx(len(chosen) / EVERY, abs=1)


def test_a_length_that_is_given_stays():
    assert set(lengths(Draft("S", length=3), rate=0.0)) == {3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "`length` is 0; draft at least one token"),
        ({"longest": 0}, "`longest` is 0; draft at least one token"),
        ({"cost": 0}, "`cost` is 0; it takes more than 0"),
        ({"verification": -1}, "`verification` is -1; it takes more than 0"),
        ({"shortlist": []}, "`shortlist` is empty"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ConfigError, match=message):
        Draft("S", **settings)
