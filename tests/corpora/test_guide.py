"""The guide lists every ending of files, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slimformer.corpus.opening import ENDINGS
from tests.conftest import ROOT

GUIDE = (ROOT / "docs" / "guides" / "corpus.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_in_the_guide(ending):
    assert f"`{ending}`" in GUIDE


def test_importing_the_package_is_quick():
    code = "import sys, slimformer.corpus; print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
