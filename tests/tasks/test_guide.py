"""The guide to data names every preset."""

from __future__ import annotations

import pytest

from slimformer.tasks import known
from tests.conftest import ROOT

GUIDE = (ROOT / "docs" / "guides" / "data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", known())
def test_every_task_is_in_the_guide(name):
    assert f"`{name}`" in GUIDE
