"""The compiled part of a tokenizer, where it panics."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def panics_raised() -> Iterator[None]:
    """Make an error of what a tokenizer's own code panics with, which no `except Exception` would see."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error
