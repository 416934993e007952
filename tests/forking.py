"""Commands in processes of their own that need not import torch and Transformers anew, which takes longer than they do.

A server imports everything once and forks for every command: a process like any other, that can be killed. What is
about starting (imports, signals, pipes) takes `runs.in_a_process`.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

from tests.runs import Done

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext, ForkServerProcess

ROOT = Path(__file__).parents[1]


@cache
def _server() -> ForkServerContext:
    """The server, running: it finds this package wherever the test that needs it first happens to be."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded", "tests.forking"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def _command(arguments: list[str], environment: dict[str, str], out: str, err: str) -> None:
    """What the process does: the command, with its output in two files, all that libraries write included."""
    assert "tests.preloaded" in sys.modules, "the server has nothing loaded, so nothing is won"
    os.environ.update(environment)
    for descriptor, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    importlib.import_module("slimformer.cli").main(arguments)


def _start(arguments: tuple[object, ...], folder: str) -> ForkServerProcess:
    given = [str(each) for each in arguments], dict(os.environ), f"{folder}/out", f"{folder}/err"
    process = _server().Process(target=_command, args=given)
    process.start()
    return process


def run(*arguments: object) -> Done:
    """Run a command to its end, in the folder and the environment of the test."""
    with tempfile.TemporaryDirectory() as folder:
        process = _start(arguments, folder)
        process.join()
        assert process.exitcode is not None
        out, err = ((Path(folder) / name).read_text(encoding="utf-8") for name in ("out", "err"))
    return Done(process.exitcode, out, err)


def killed_when(condition: Callable[[], bool], *arguments: object) -> bool:
    """Start a command and kill it the moment `condition` holds; False if it was over before."""
    with tempfile.TemporaryDirectory() as folder:
        process = _start(arguments, folder)
        try:
            while process.is_alive():
                if condition():
                    process.kill()
                    return True
                time.sleep(0.0005)
        finally:
            process.kill()
            process.join()
    return False
