"""Signals that end a process: one line, the right exit code, nothing half-written, and a run that goes on."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from slimformer.cli.failing import Ended, ending
from tests import runs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_while_a_command_runs(number):
    with pytest.raises(Ended) as ended, ending():
        signal.raise_signal(number)
    assert ended.value.number == number
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_ended_goes_on(number, base, data, tmp_path):
    flags = ["--model", base, "--task", "classification", "--data", data, "--max-steps", 200, "--save-every", 1]
    command = ["finetune", *flags, "--batch-size", 8, "--out", tmp_path / "out", "--quiet"]
    process = subprocess.Popen(runs.in_a_process(*command), stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and not (tmp_path / "out.training" / "checkpoint-3").exists():
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert err == "interrupted; the same command with `--resume` goes on from its last checkpoint, or begins anew\n"
    assert {path.name for path in tmp_path.iterdir()} == {"out.training"}
    assert runs.run(*command, "--resume").code == 0
