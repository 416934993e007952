"""Masks that all tests of the bank ask."""

from __future__ import annotations

import pytest

from tests.bank.shelf import fill


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A base and a mask for each kind of task."""
    return fill(tmp_path_factory.mktemp("bank"))
