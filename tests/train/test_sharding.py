"""Two processes compute what one does, with a copy of the model on each or a part of it, and one goes on with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from tests import corpus
from tests.conftest import ROOT

# Processes are started once for many runs, as that takes longer than they do. The weights of each checkpoint are kept
# beside the result: the last ones are those that training ended with. A run is interrupted by an error in all of them.
SCRIPT = """
import json, os, shutil, sys
from torch.optim.optimizer import register_optimizer_step_pre_hook
from slimformer import adapt, distill, elastic, finetune, mask, quantize
from slimformer.cli.output import print_json

class Interrupted(Exception):
    pass

def keep(event, args):
    if event == "os.rename" and str(args[1]).endswith("/weights.safetensors"):
        shutil.copy(args[0], out + ".weights")

def look(optimizer, args, kwargs):
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    seen.append({type(weight.data).__name__ for weight in weights})
    if len(seen) > (stop or len(seen)):
        raise Interrupted

sys.addaudithook(keep)
register_optimizer_step_pre_hook(look)
place, runs = sys.argv[1], json.loads(sys.argv[2])
base, data = place + "/base", place + "/data"
loop = {"max_steps": 8, "batch_size": 16, "lr": 1e-3, "log_every": 1, "save_every": 1, "threads": 1, "quiet": True}
task = {"model": base, "task": "classification", "data": data, **loop}
texts = {"corpus": [data + "/train.tsv"], "text_column": "text", "max_length": 16, **loop}
calls = {
    "finetune": (finetune, task),
    "distill": (distill, {"teacher": base, "layers": 1, "hidden": 16, "heads": 4, "pooled": "mean", **texts}),
    "quantize": (quantize, {**task, "model": place + "/finetune-alone", "stages": 2, "first_stage": 5}),
    "mask": (mask, {**task, "blocks": "0-", "sparsity": 0.3}),
    "elastic": (elastic, {**task, "sizes": "0.5,1"}),
    "adapt": (adapt, {"model": base, **texts}),
}
results = {}
for name, more, stop in runs:
    out, seen = f"{place}/{name}", []
    call, settings = calls[name.partition("-")[0]]
    try:
        result = call(**{**settings, "out": out, **more})
    except Interrupted:
        continue
    curve = [entry["loss"] for entry in result.log if "loss" in entry]
    results[name] = {**result.summary(), "curve": curve, "seen": sorted(set().union(*seen)), "taken": len(seen)}
print_json(results)
"""
METHODS = ("finetune", "distill", "quantize", "mask", "elastic", "adapt")
#: Those that are interrupted and gone on with; `test_processes.py` does so with fine-tuning.
RESUMED = ("distill", "quantize", "mask", "elastic")
#: How the model lies on the processes, and what is set for it.
LAYOUTS = {"copies": {}, "parts": {"shard": True}}


def start(processes, place, runs):
    """Processes that make some runs together: name, settings beside the usual ones, step to interrupt it after."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    several = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-c", SCRIPT, str(place), json.dumps(runs)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **({**several, "RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {})},
            **pipes,
        )
        for rank in range(processes)
    ]


def finish(started):
    ended = [process.communicate(timeout=1200) for process in started]
    errors = "\n".join(error[-4000:] for _, error in ended)
    assert [process.returncode for process in started] == [0] * len(started), errors
    return json.loads(ended[0][0])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    corpus.model_folder(folder / "base", dropout=0.0)  # dropout draws other numbers in each process
    corpus.data_folder(folder / "data")
    return folder


@pytest.fixture(scope="module")
def alone(place):
    """What one process computes, by name."""
    return finish(start(1, place, [(f"{method}-alone", {}, None) for method in METHODS]))


@pytest.fixture(scope="module")
def results(place, alone):
    """That, what two processes compute, and what one does that goes on with what two began."""
    whole = [(f"{method}-{layout}", more, None) for layout, more in LAYOUTS.items() for method in METHODS]
    begun = [(f"{method}-{layout}-resumed", more, 4) for layout, more in LAYOUTS.items() for method in RESUMED]
    together = finish(start(2, place, [*whole, *begun]))
    resume = {"resume": True, "accumulation": 2}
    resumed = finish(start(1, place, [(name, {**more, **resume}, None) for name, more, _ in begun]))
    return alone | together | resumed


def compare(place, one, other):
    """The weights that two runs ended with."""
    ours, theirs = (load_file(place / f"{name}.weights") for name in (one, other))
    assert ours.keys() == theirs.keys()
    for key, weight in ours.items():
        if "key" not in key or not key.endswith("bias"):  # its gradient is zero but for rounding, which Adam blows up
            torch.testing.assert_close(theirs[key], weight, rtol=0, atol=1e-5, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_end_with_the_weights_of_one(layout, method, place, results):
    one, two = results[f"{method}-alone"], results[f"{method}-{layout}"]
    assert (one["processes"], two["processes"]) == (1, 2)
    # On CPUs Accelerate would leave copies without a word.
    assert two["seen"] == (["DTensor"] if layout == "parts" else ["Tensor"])
    assert len(one["curve"]) == 8
    assert two["curve"] == pytest.approx(one["curve"], abs=1e-5)
    compare(place, f"{method}-alone", f"{method}-{layout}")
    figures = "losses" if method == "distill" else "metrics"
    assert two[figures] == pytest.approx(one[figures], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", RESUMED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_process_goes_on_with_twice_the_parts_of_a_batch(layout, method, place, results):
    one, resumed = results[f"{method}-alone"], results[f"{method}-{layout}-resumed"]
    assert (resumed["processes"], resumed["taken"]) == (1, 4)
    assert resumed["curve"] == pytest.approx(one["curve"], abs=1e-5)
    compare(place, f"{method}-alone", f"{method}-{layout}-resumed")


@pytest.mark.slow
def test_killed_with_parts_on_each_process(place, alone):
    """The same after a real kill in the middle of a step, of scores that lie on masks."""
    started = start(2, place, [("mask-killed", {"shard": True}, None)])
    while not list((place / "mask-killed.training").glob("checkpoint-[3-6]/sealed.json")):
        assert all(process.poll() is None for process in started), finish(started)
        time.sleep(0.01)
    for process in started:
        process.kill()
        process.communicate()
    assert not (place / "mask-killed").exists()
    finish(start(2, place, [("mask-killed", {"shard": True, "resume": True}, None)]))
    compare(place, "mask-alone", "mask-killed")
