"""Two processes under `accelerate launch` quantize as one does: the student is wrapped, the teacher is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import corpus

SCRIPT = """
import sys
from slimformer.cli.output import print_json
from slimformer import quantize

base, data, out = sys.argv[1:]
loop = {"max_steps": 8, "batch_size": 16, "lr": 1e-3, "log_every": 1, "threads": 1, "quiet": True}
knowledge = {"balance": "auto", "stages": 2, "first_stage": 5}
result = quantize(model=base, task="classification", data=data, out=out, **loop, **knowledge)
curve = [{name: entry[name] for name in ("loss", "map", "map_weight") if name in entry} for entry in result.log]
print_json({**result.summary(), "curve": [entry for entry in curve if "loss" in entry]})
"""


def run(launcher: list[str], *arguments) -> dict:
    script = arguments[-1].with_suffix(".py")
    script.write_text(SCRIPT)
    done = subprocess.run([*launcher, str(script), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_two_processes_learn_as_one(tmp_path):
    base = corpus.model_folder(tmp_path / "base", dropout=0.0)  # dropout draws other numbers in each process
    data = corpus.data_folder(tmp_path / "data")
    # The base has no head, so each run fine-tunes it first, and all its processes go on from what one has written.
    one = run([sys.executable], base, data, tmp_path / "one")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    two = run([*launch, "--main_process_port", "0"], base, data, tmp_path / "two")
    assert (one["processes"], two["processes"]) == (1, 2)
    assert len(one["curve"]) == len(two["curve"]) == 8
    for alone, together in zip(one["curve"], two["curve"], strict=True):
        assert set(alone) == set(together)
        assert together == pytest.approx(alone, rel=1e-5, abs=1e-7)  # both are float32
    assert "map" in one["curve"][4]
    assert "map" not in one["curve"][5]
