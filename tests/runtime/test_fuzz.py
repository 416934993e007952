"""The engine under AddressSanitizer and UBSan for some seconds; `make fuzz-engine` goes on for as long as one likes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tests.conftest import ROOT

SETTINGS = ("SEED=1", "COUNT=3000", "INPUTS=70")


@pytest.mark.slow
def test_no_string_reads_or_writes_where_it_must_not():
    missing = [tool for tool in ("make", "cmake", os.environ.get("CXX", "c++")) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    done = subprocess.run(["make", "fuzz-engine", *SETTINGS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "2240 products of 1 to 70 inputs" in done.stdout
    (answered,) = re.findall(r"3000 strings, (\d+) answered", done.stdout)
    assert 1500 < int(answered) < 3000  # both numbers and errors come of them
