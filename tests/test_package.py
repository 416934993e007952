from __future__ import annotations

import subprocess
import sys

import pytest

import slimformer


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_and_help_load_neither_torch_nor_transformers():
    loaded = "import sys; print([m for m in ('torch', 'transformers', 'numpy', 'datasets') if m in sys.modules])"
    assert run(f"import slimformer; {loaded}").strip() == "[]"
    code = f"from slimformer.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n{loaded}"
    assert run(code).strip().endswith("[]")


def test_public_names_are_there():
    for name in slimformer.__all__:
        assert getattr(slimformer, name) is not None
    assert set(slimformer.__all__) <= set(dir(slimformer))
    with pytest.raises(AttributeError, match="no attribute `nonsense`"):
        _ = slimformer.nonsense
