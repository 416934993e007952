"""Every target for a few seconds, always the same inputs; `make fuzz` goes on for as long as one likes."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from slimformer.runtime.native import is_built
from tests.conftest import ROOT
from tests.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris, an extra for development, is not installed")
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_errors_of_our_own(name: str, tmp_path: Path) -> None:
    if name.startswith("engine") and not is_built():
        pytest.skip("slimformer was installed without a compiler")
    options = [f"-runs={TARGETS[name].runs}", "-max_total_time=3", "-seed=7"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, str(tmp_path / "corpus"), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert re.search(r"DONE +cov: \d+", done.stderr), "inputs were made without a look at what they reach"
