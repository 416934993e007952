"""The table of bad inputs: one line, the right exit code, nothing left behind, and all that quickly."""

from __future__ import annotations

import re
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests import runs
from tests.cli import bad_inputs, bad_materials, bad_readers
from tests.cli.bad_inputs import Bad, Room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: No refusal takes longer; most take a few hundredths of it.
SECONDS = 10
#: A line that says what happened, the value seen and what to do next is not longer.
CHARACTERS = 2_500
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

TABLE = {
    f"{group}: {name}": row
    for group, rows in (
        ("limits", bad_inputs.LIMITS),
        ("escape sequences", bad_inputs.SEQUENCES),
        ("gzip", bad_inputs.PACKED),
        ("others", bad_inputs.OTHERS),
        ("models", bad_materials.MODELS),
        ("settings", bad_materials.SETTINGS),
        ("data", bad_materials.DATA),
        ("layouts", bad_readers.LAYOUTS),
        ("values", bad_readers.VALUES),
        ("numbers", bad_readers.NUMBERS),
    )
    for name, row in rows.items()
}


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Fail what hangs: a signal ends even a wait for a pipe."""

    def ring(*_: object) -> None:
        raise AssertionError(f"still at work after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def viewer(shelf: Path) -> Path:
    return runs.viewer(shelf / "viewer")


@pytest.fixture
def room(base, data, artifact, viewer, tmp_path) -> Room:
    return Room(base, data, artifact, viewer, tmp_path)


@pytest.mark.parametrize("name", TABLE)
def test_bad_input(name: str, room: Room, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row: Bad = TABLE[name]
    monkeypatch.chdir(room.tmp)
    command = row.command(room)
    before = runs.listing(room.tmp)
    start = time.monotonic()
    with time_limit(SECONDS):
        done = runs.run(*command)
    assert time.monotonic() - start < SECONDS
    assert "unexpected" not in done.err
    assert "Traceback" not in done.err
    assert not CONTROL.search(done.err)
    assert len(done.err) < CHARACTERS
    last = done.err.splitlines()[-1]
    runs.Done(done.code, done.out, f"{last}\n").refused(code=row.code)
    for word in row.words:
        assert word in done.err
    assert runs.listing(room.tmp) == before
    assert not runs.listing(temporary)
