"""What answers needs nothing of what trains."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import corpus, runs

#: What a user does with a finished model, as code: `A` an artifact, `M` a mask, `D` their data, `T` a scratch folder.
USES = {
    "load": "import slimformer; slimformer.load(A)",
    "verify": "import slimformer; slimformer.verify(A)",
    "evaluate": "from slimformer.cli import main; main(['evaluate', A, '--data', D])",
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


@pytest.mark.parametrize("use", USES)
def test_inference_never_imports_training(use, made, tmp_path):
    code = "; ".join(f"{name} = {value!r}" for name, value in {**made, "T": str(tmp_path)}.items())
    code += f"\nimport sys\n{USES[use]}\n"
    code += "loaded = [name for name in sys.modules if name.startswith(('slimformer.train', 'slimformer.methods'))]\n"
    code += "assert not loaded, loaded"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
