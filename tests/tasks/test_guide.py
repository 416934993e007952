"""The guide to data runs as it stands and names every preset."""

from __future__ import annotations

import re

import pytest

from slimformer.tasks import known
from tests.conftest import ROOT

GUIDE = (ROOT / "docs" / "guides" / "data.md").read_text(encoding="utf-8")


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL))
    exec(compile(code, "data.md", "exec"), {})


@pytest.mark.parametrize("name", known())
def test_every_task_is_in_the_guide(name):
    assert f"`{name}`" in GUIDE
