"""Corrupted artifacts of every kind, with sums that agree: refused in our words, or no different in their answers."""

from __future__ import annotations

import pytest

from tests.artifact.corrupting import BAD, attack

COUNT = 240


@pytest.mark.slow
def test_no_corrupted_artifact_is_accepted_with_other_answers():
    outcomes, grown = attack(COUNT, seed=7)
    assert len(outcomes) == COUNT
    assert [outcome for outcome in outcomes if outcome.verdict in BAD] == []
    assert sum(outcome.verdict == "refused" for outcome in outcomes) > COUNT // 2
    assert grown < 1024 * 1024
