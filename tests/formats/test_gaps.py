"""Bits in few bytes: back bit for bit, near the entropy, and no more memory than there are bits."""

from __future__ import annotations

import math
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimformer.errors import FormatError
from slimformer.formats import gaps
from slimformer.formats.bits import read_bits


def drawn(count, share, seed=0):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) < share


@given(st.lists(st.booleans(), max_size=700), st.integers(0, 600))
def test_what_is_encoded_comes_back(flags, run):
    flags = torch.tensor([*flags, *[True] * run, *flags], dtype=torch.bool)
    for coded in (gaps.encode(flags), gaps.plain(flags)):
        assert gaps.decode(coded, flags.numel()).tolist() == flags.int().tolist()


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.03, 0.05, 0.5, 0.7, 0.95, 1.0])
def test_bytes_are_near_the_entropy(share):
    count = 400_000
    coded = gaps.encode(drawn(count, share))
    entropy = -sum(p * math.log2(p) for p in (share, 1 - share) if p) * count / 8
    assert coded.numel() <= 1.02 * entropy + 250
    assert torch.equal(gaps.decode(coded, count), drawn(count, share).to(torch.uint8))


def test_never_longer_than_the_bits_themselves():
    alternating = torch.arange(64) % 3 == 0
    assert gaps.encode(alternating).numel() <= 1 + 8


def coded(mode, content):
    return torch.tensor([mode, *zlib.compress(content)], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (torch.tensor([], dtype=torch.uint8), "no coded bits"),
        (torch.zeros(3), "no coded bits"),
        (torch.tensor([3, 0], dtype=torch.uint8), "in way 3"),
        (torch.tensor([0, 1, 2], dtype=torch.uint8), "2 bytes for 100 bits instead of 13"),
        (torch.tensor([1, 7, 7, 7], dtype=torch.uint8), "cannot be read"),
        (coded(1, b"\x05" * 20)[:-5], "cut short"),
        (torch.cat([coded(1, b"\x05"), torch.ones(3, dtype=torch.uint8)]), "cut short"),
        (coded(1, b"\x05" * 17), "beyond the last of 100 bits"),
        (coded(2, b"\x05\xff"), "beyond the last of 100 bits"),
        (coded(1, b"\x00" * 101), "more than there are bits, 100"),
    ],
)
def test_broken_bytes_are_refused(broken, message):
    with pytest.raises(FormatError, match=message):
        gaps.decode(broken, 100)


def test_a_bomb_takes_no_memory():
    """A thousand bytes that would grow to many."""
    bomb = coded(1, b"\x00" * 50_000_000)
    assert bomb.numel() < 100_000
    tracemalloc.start()
    with pytest.raises(FormatError, match="more than there are bits"):
        gaps.decode(bomb, 1000)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_fewer_bits_than_none_are_refused():
    for mode in (0, 1, 2):
        with pytest.raises(FormatError, match="cannot be -3 bits"):
            read_bits(np.array([mode, 7], np.uint8), -3)
