"""Two processes under `accelerate launch` compute what one computes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import corpus

SCRIPT = """
import json, sys
from slimformer import finetune
result = finetune(model=sys.argv[1], task="classification", data=sys.argv[2], out=sys.argv[3], max_steps=10,
                  batch_size=16, lr=1e-3, log_every=1, threads=1, quiet=True, epochs=2)
import os
if int(os.environ.get("RANK", "0")) == 0:
    print(json.dumps({"loss": [e["loss"] for e in result.log if "loss" in e], "metrics": result.metrics}))
"""


def losses(launcher: list[str], base, data, out) -> dict:
    script = out.with_suffix(".py")
    script.write_text(SCRIPT)
    done = subprocess.run([*launcher, str(script), str(base), str(data), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_two_processes_equal_one(tmp_path):
    base = corpus.model_folder(tmp_path / "base", dropout=0.0)  # dropout draws other numbers in each process
    data = corpus.data_folder(tmp_path / "data")
    one = losses([sys.executable], base, data, tmp_path / "one")
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes",
        "2",
        "--cpu",
        "--main_process_port",
        "0",
    ]
    two = losses(launch, base, data, tmp_path / "two")
    assert len(one["loss"]) == 10
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    assert two["metrics"] == one["metrics"]
    assert (tmp_path / "two" / "slimformer.json").exists()
    assert not (tmp_path / "two.training").exists()
