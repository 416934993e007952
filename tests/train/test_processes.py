"""Two processes under `accelerate launch` compute what one computes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests import corpus

SCRIPT = """
import os, sys, time
from slimformer import finetune
from slimformer.cli.output import print_json

base, data, out = sys.argv[1:]
settings = {"task": "classification", "max_steps": 10, "batch_size": 16, "lr": 1e-3, "log_every": 1, "threads": 1}
time.sleep(3 * int(os.environ.get("RANK", "0")))  # a process may come late, when another has begun to write
result = finetune(model=base, data=data, out=out, quiet=True, **settings)
print_json({"losses": [entry["loss"] for entry in result.log if "loss" in entry], **result.summary()})
"""


def run(launcher: list[str], base, data, out) -> dict:
    script = out.with_suffix(".py")
    script.write_text(SCRIPT)
    done = subprocess.run([*launcher, str(script), str(base), str(data), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # one object, however many processes there are


def test_two_processes_equal_one(tmp_path):
    base = corpus.model_folder(tmp_path / "base", dropout=0.0)  # dropout draws other numbers in each process
    data = corpus.data_folder(tmp_path / "data")
    one = run([sys.executable], base, data, tmp_path / "one")
    # On machines without a GPU as well, this flag is what makes `accelerate launch` start several processes.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--main_process_port", "0"]
    two = run(launch, base, data, tmp_path / "two")
    assert one["processes"] == 1
    assert two["processes"] == 2
    assert len(one["losses"]) == 10
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weight in ours.items():
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding, which Adam blows up
            torch.testing.assert_close(theirs[name], weight, rtol=1e-3, atol=1e-5, msg=name)
    assert two["metrics"] == pytest.approx(one["metrics"])
    assert not (tmp_path / "two.training").exists()
