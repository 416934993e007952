"""Numbers that something is counted by, as users give them."""

from __future__ import annotations

import os

from slimformer.errors import UsageError, describe

#: More of anything that is counted is a slip of the hand, and overflows what libraries count in.
MOST = 2**31 - 1
#: More threads than that help on no machine that has fewer cores.
_MOST_THREADS = 64


def check_threads(count: int) -> int:
    """A number of threads that this machine can start; else a `ValueError`."""
    cores = os.cpu_count() or 1
    most = max(_MOST_THREADS, cores)
    if type(count) is not int or not 1 <= count <= most:
        raise ValueError(f"this machine has {cores} cores; give 1 to {most}")
    return count


def check_count(flag: str, count: int) -> int:
    """A number that something is counted by, such as the examples of a batch; else a `UsageError`."""
    if type(count) is not int or not 1 <= count <= MOST:
        raise UsageError(f"`--{flag}` is `{describe(count)}`; give 1 or more, {MOST} at most")
    return count
