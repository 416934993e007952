"""The code of the guide runs as it stands there, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import transformers as hf

from tests import runs
from tests.conftest import ROOT

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs.headed(tmp_path / "sentiment", hf.BertForSequenceClassification, num_labels=3)
    guide = (ROOT / "docs" / "guides" / "export.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)), "export.md", "exec"), names)
    assert names["logits"].shape == (2, 3)


def test_importing_the_package_is_quick():
    heavy = "{'torch', 'transformers', 'onnx', 'onnxruntime', 'onnxscript', 'numpy'}"
    code = f"import sys, slimformer.export, slimformer.cli.export; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
