"""A run that is killed at any of its operations on files goes on to the very weights of an unbroken one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import corpus
from tests.conftest import ROOT

# One process loads everything; each attempt is a fork of it that is killed at the n-th time it is about to touch a
# file or folder beside the result, for every n, and another fork that goes on.
SCRIPT = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from slimformer import finetune
from slimformer.artifact import read_manifest, verify

place = sys.argv[1]
settings = dict(
    model=place + "/base", task="classification", data=place + "/data", max_steps=2, batch_size=8, lr=1e-3, limit=12,
    save_every=1, threads=1, schedule="constant", quiet=True,
)
events = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.chmod", "shutil.rmtree"}


def touches(event, args, parent):
    if event not in events or not isinstance(args[0], str | bytes | os.PathLike):
        return False
    if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return False
    inside = event in ("os.remove", "os.rmdir") and args[1] != -1  # by `shutil.rmtree`, in a folder it has open
    path = os.fsdecode(args[0])
    return inside or (path.startswith(parent) and "/stage/" not in path)  # tests/artifact kills saves in there


def result(out):
    manifest = read_manifest(out)
    counts = {name: manifest.steps[-1].config[name] for name in ("steps", "kept_step")}
    return manifest.model.fingerprint, manifest.metrics, counts


def attempt(out, last):
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) or status == 0, status
        return os.WIFSIGNALED(status)
    seen = 0

    def watch(event, args):
        nonlocal seen
        if touches(event, args, os.path.dirname(out)):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    finetune(**settings, out=out, resume=True)
    os._exit(0)


folder = os.path.realpath(place) + "/runs"
os.mkdir(folder)
finetune(**settings, out=folder + "/whole")  # in this process, so that every fork has all modules loaded
expected, kills = result(folder + "/whole"), 0
while True:
    parent = f"{folder}/{kills + 1}"
    os.mkdir(parent)
    out = parent + "/out"
    if not attempt(out, kills + 1):
        break
    kills += 1
    if os.path.exists(out):
        verify(out)  # never half written
    assert not attempt(out, 0)
    assert result(out) == expected, (kills, result(out), expected)
    assert os.listdir(parent) == ["out"], (kills, os.listdir(parent))
print("kills", kills)
"""


@pytest.mark.slow
def test_killed_at_every_operation(tmp_path):
    corpus.model_folder(tmp_path / "base")
    corpus.data_folder(tmp_path / "data")
    script = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 40
