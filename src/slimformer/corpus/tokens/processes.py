"""Processes beside this one that do a part of the work each; what they answer comes in the order of the questions."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Processes(Generic[Job, Answer]):
    """Processes that each hold a copy of a worker.

    They are fresh interpreters and no forks, which would inherit threads that are in the middle of something, and they
    do not import the user's script again, as those of `multiprocessing` do. They end with this process, however that
    ends, because their input does.

    Args:
        worker: A callable that pickles.
        count: How many processes; they start with the first job.
    """

    def __init__(self, worker: Callable[[Job], Answer], count: int) -> None:
        self._worker = pickle.dumps(worker)
        self._count = count
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []
        self._introduced: list[subprocess.Popen[bytes]] = []  # those that have the worker
        # One thread waits for each process.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="tokens")

    def submit(self, job: Job) -> Future[Answer]:
        """Have a job done by the next process that is idle."""
        if len(self._started) < self._count:
            process = _start()
            self._started.append(process)
            self._idle.put(process)
        return self._threads.submit(self._ask, job)

    def map(self, jobs: Iterable[Job], known: Callable[[Job], Answer | None]) -> Iterator[Answer]:
        """The answers to all jobs, in order; not many more jobs are looked at than are worked on.

        Args:
            jobs: The jobs.
            known: The answer to a job that need not be done.
        """
        waiting: deque[Future[Answer]] = deque()
        for job in jobs:
            waiting.append(self.submit(job) if (ready := known(job)) is None else _resolved(ready))
            if len(waiting) > self._count + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def close(self) -> None:
        """End the processes, whatever they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait()

    def __enter__(self) -> Processes[Job, Answer]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, job: Job) -> Answer:
        process = self._idle.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            if process not in self._introduced:
                self._introduced.append(process)
                process.stdin.write(self._worker)
            pickle.dump(job, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            succeeded, answer = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise DataError(
                f"a process that makes tokens ended before its work was done (code {process.wait()}); free some "
                "memory, or give `--workers 1`"
            ) from error
        finally:
            self._idle.put(process)
        if not succeeded:
            raise answer
        result: Answer = answer
        return result


def _resolved(result: Answer) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(result)
    return future


def _start() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path for path in sys.path if path)
    # The threads of a tokenizer would contend for the cores that the processes share already.
    environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import answer; answer()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def answer() -> None:
    """Do the jobs that come in until there are no more: what a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process ends when the other does
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed belongs to people
    try:
        worker = pickle.load(questions)
        while True:
            _reply(answers, _attempt(worker, pickle.load(questions)))
    except (EOFError, BrokenPipeError):
        return


def _attempt(worker: Callable[[Any], Any], job: Any) -> tuple[bool, Any]:
    try:
        return True, worker(job)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return False, DataError(f"a process that makes tokens failed: {type(error).__name__}: {error}")
        return False, error


def _reply(answers: BinaryIO, reply: tuple[bool, Any]) -> None:
    pickle.dump(reply, answers, pickle.HIGHEST_PROTOCOL)
    answers.flush()
