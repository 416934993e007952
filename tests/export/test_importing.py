"""Nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    ("module", "light"),
    [("slimformer.integrations.onnx", ()), ("slimformer.integrations.gguf", ()), ("slimformer.cli.export", ("numpy",))],
)
def test_importing_is_quick(module, light):
    heavy = {"torch", "transformers", "onnx", "onnxruntime", "onnxscript", "gguf", "numpy"} - set(light)
    code = f"import sys, {module}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
