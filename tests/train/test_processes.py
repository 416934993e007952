"""Two processes under `accelerate launch` compute what one computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests import corpus

SCRIPT = """
import json, os, sys, time
from slimformer import distill, finetune
from slimformer.cli.output import print_json

method, base, data, out = sys.argv[1:]
settings = {"max_steps": 10, "batch_size": 16, "lr": 1e-3, "log_every": 1, "threads": 1, "quiet": True, "out": out}
settings |= json.loads(os.environ.get("MORE", "{}"))
time.sleep(3 * int(os.environ.get("RANK", "0")))  # a process may come late, when another has begun to write
if method != "distill":
    close = None if method == "finetune" else method
    result = finetune(model=base, task="classification", data=data, keep_close=close, **settings)
else:
    shape = {"layers": 1, "hidden": 16, "heads": 4, "max_length": 16, "pooled": "mean"}
    result = distill(teacher=base, corpus=[data + "/train.tsv"], text_column="text", **shape, **settings)
print_json({**result.summary(), "curve": [entry["loss"] for entry in result.log if "loss" in entry]})
"""


# On machines without a GPU as well, `--multi_gpu` is what makes `accelerate launch` start several processes.
TWO = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
TWO += ["--main_process_port", "0"]


def started(launcher: list[str], method, base, data, out, more: dict | None = None) -> subprocess.Popen[str]:
    """A run that goes on by itself."""
    script = out.with_suffix(".py")
    script.write_text(SCRIPT)
    command = [*launcher, str(script), method, str(base), str(data), str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, "MORE": json.dumps(more or {})}, **pipes)


def run(launcher: list[str], method, base, data, out, more: dict | None = None) -> dict:
    process = started(launcher, method, base, data, out, more)
    out_text, err_text = process.communicate()
    assert process.returncode == 0, err_text[-3000:]
    return json.loads(out_text)  # one object, however many processes there are


@pytest.mark.slow
# Noise differs between processes, as their examples do: so little that nothing shows of it.
@pytest.mark.parametrize("method", ["finetune", "distill", "recadam[pull=100,middle=5]", "r3f[noise=1e-12]"])
def test_two_processes_equal_one(method, tmp_path):
    base = corpus.model_folder(tmp_path / "base", dropout=0.0)  # dropout draws other numbers in each process
    data = corpus.data_folder(tmp_path / "data")
    one = run([sys.executable], method, base, data, tmp_path / "one")
    two = run(TWO, method, base, data, tmp_path / "two")
    assert (one["processes"], two["processes"]) == (1, 2)
    assert len(one["curve"]) == 10
    assert two["curve"] == pytest.approx(one["curve"], abs=1e-5)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weight in ours.items():
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding, which Adam blows up
            torch.testing.assert_close(theirs[name], weight, rtol=1e-3, atol=1e-5, msg=name)
    figures = "losses" if method == "distill" else "metrics"
    assert two[figures] == pytest.approx(one[figures], abs=1e-5)
    assert not (tmp_path / "two.training").exists()


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2])
def test_a_run_goes_on_with_another_number_of_processes(first, tmp_path):
    """Killed, and resumed with half the processes and twice the parts of a batch, or the other way round."""
    base = corpus.model_folder(tmp_path / "base", dropout=0.0)
    data = corpus.data_folder(tmp_path / "data")
    more = {"max_steps": 24, "save_every": 1}
    one, two = ([sys.executable], {**more, "accumulation": 2}), (TWO, more)
    before, after = (one, two) if first == 1 else (two, one)
    whole = run(one[0], "finetune", base, data, tmp_path / "whole", more)
    out = tmp_path / "changed"
    process = started(before[0], "finetune", base, data, out, before[1])
    while not list((tmp_path / "changed.training").glob("checkpoint-[4-9]/sealed.json")):
        assert process.poll() is None
        time.sleep(0.01)
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in family:
        each.kill()
    process.communicate()
    assert not out.exists()
    changed = run(after[0], "finetune", base, data, out, {**after[1], "resume": True})
    assert changed["processes"] == 3 - first
    assert changed["curve"] == pytest.approx(whole["curve"], abs=1e-5)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "changed"))
    for name, weight in ours.items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(theirs[name], weight, rtol=1e-3, atol=1e-5, msg=name)


# The process that writes is slow at it; the other one would look for the student before it is there.
WAITING = """
import os, sys, time
from slimformer import distill

base, data, out = sys.argv[1:]
if os.environ["RANK"] == "0":
    slow = lambda event, args: time.sleep(2) if event == "os.rename" and str(args[1]) == out else None
    sys.addaudithook(slow)
loop = {"max_steps": 1, "batch_size": 4, "threads": 1, "quiet": True}
corpus = {"corpus": [data + "/train.tsv"], "text_column": "text", "max_length": 16}
task = {"then_task": "classification", "data": data, "finetune_steps": 1, "finetune_batch_size": 4}
distill(teacher=base, layers=1, out=out, **corpus, **task, **loop)
"""


@pytest.mark.slow
def test_all_processes_wait_for_the_student_before_it_is_fine_tuned(tmp_path):
    base = corpus.model_folder(tmp_path / "base")
    data = corpus.data_folder(tmp_path / "data")
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    arguments = ["--main_process_port", "0", script, base, data, tmp_path / "out"]
    done = subprocess.run([*launch, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.iterdir()} >= {"out", "out-classification"}
    assert not list(tmp_path.glob("*.training"))
