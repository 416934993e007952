"""Nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_importing_the_package_is_quick():
    heavy = "{'torch', 'transformers', 'onnx', 'onnxruntime', 'onnxscript', 'numpy'}"
    code = f"import sys, slimformer.integrations.onnx, slimformer.cli.export; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
