"""What answers needs nothing of what trains."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import corpus, runs

#: What a user does with a finished model, as code: `A` an artifact, `M` a mask, `D` their data, `T` a scratch folder.
USES = {
    "load": "import slimformer; slimformer.load(A)",
    "verify": "import slimformer; slimformer.verify(A)",
    "evaluate": "from slimformer.cli import main; main(['evaluate', A, '--data', D])",
    "compare": "from slimformer.cli import main; main(['compare', A, M, '--data', D, '--report', T + '/page.html'])",
    "predict": "from slimformer.cli import main; main(['predict', A, 'a film', '--json'])",
    "bench": "from slimformer.cli import main; main(['bench', A, '--length', '8', '--seconds', '0'])",
    "inspect": "from slimformer.cli import main; main(['inspect', A])",
    "export": "from slimformer.cli import main; main(['export', A, '--out', T + '/model.onnx'])",
    "bank": (
        "from slimformer.bank import MaskBank; bank = MaskBank(); bank.add('one', M); bank.predict({'one': ['a film']})"
    ),
    "merge": "from slimformer.cli import main; main(['merge', M, '--out', T + '/plain'])",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    base, data = corpus.model_folder(folder / "base"), corpus.data_folder(folder / "data")
    assert runs.finetune(base, "classification", data, folder / "plain").code == 0
    flags = ["--model", base, "--task", "classification", "--data", data, "--out", folder / "mask", "--max-steps", 2]
    assert runs.run("mask", *flags, "--blocks", "0-").code == 0
    return {"A": str(folder / "plain"), "M": str(folder / "mask"), "D": str(data)}


#: Does one thing after another in one process and says what of training each has loaded, or how it failed.
SCRIPT = """
import json, sys, traceback
uses, names, out = json.loads(sys.argv[1])
seen, loaded = set(), {}
for use, code in uses.items():
    try:
        exec(code, dict(names))
        new = {name for name in sys.modules if name.startswith(("slimformer.train", "slimformer.methods"))} - seen
        seen |= new
        loaded[use] = sorted(new)
    except BaseException:
        loaded[use] = traceback.format_exc()
open(out, "w").write(json.dumps(loaded))
"""


def loaded_by(uses, made, folder):
    names, out = {**made, "T": str(folder)}, folder / "loaded.json"
    arguments = json.dumps([{use: USES[use] for use in uses}, names, str(out)])
    done = subprocess.run([sys.executable, "-c", SCRIPT, arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_inference_never_imports_training(made, tmp_path):
    uses = [use for use in USES if use != "export"]
    assert loaded_by(uses, made, tmp_path) == {use: [] for use in uses}


@pytest.mark.slow
def test_exporting_never_imports_training(made, tmp_path):
    """By itself, for what it needs of torch takes seconds to import."""
    assert loaded_by(["export"], made, tmp_path) == {"export": []}


@pytest.mark.slow
def test_what_imports_training_is_seen(made, tmp_path, monkeypatch):
    monkeypatch.setitem(USES, "train", "import slimformer.train.rates")
    monkeypatch.setitem(USES, "fail", "slimformer.load(A)")
    loaded = loaded_by(["train", "fail"], made, tmp_path)
    assert "slimformer.train.rates" in loaded["train"]
    assert "NameError" in loaded["fail"]
