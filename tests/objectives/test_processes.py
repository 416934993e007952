"""Two processes, each with a part of the batch, compute the gradients of the whole batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.objectives.batches import TERMS

SCRIPT = """
import sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from slimformer.methods.terms import freeze_unused
from tests.objectives.batches import TERMS, batch, build, furthest, gradients

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
for family in sys.argv[1:]:
    inputs = batch(family)
    objective, student = build(family, TERMS[family])
    freeze_unused(student, objective, inputs)
    loss = objective(student, inputs)
    loss.total.backward()
    whole = gradients(student)
    part = {name: value[slice(0, 3) if rank == 0 else slice(3, 8)] for name, value in inputs.items()}
    counts = objective.counts(part)
    summed = torch.tensor(list(counts.values()))
    distributed.all_reduce(summed)
    totals = {name: int(total) / 2 for name, total in zip(counts, summed)}
    wrapped = DistributedDataParallel(student)
    objective(wrapped, part, totals).total.backward()
    if rank == 0:
        sys.stdout.write(f"{family} {furthest(whole, gradients(student))}\\n")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_add_up_to_the_whole_batch():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *TERMS],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    ended = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended[0][1][-3000:]
    differences = dict(line.split() for line in ended[0][0].splitlines())
    assert differences.keys() == TERMS.keys()
    for family, difference in differences.items():
        assert float(difference) < 1e-6, family
