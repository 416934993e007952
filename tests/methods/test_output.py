"""Where a run works: nobody else does at the same time."""

from __future__ import annotations

import pytest

from slimformer.errors import TrainingError
from slimformer.methods.method import RunOptions
from slimformer.methods.run import OutputDirectory


def test_a_run_keeps_others_out_while_it_works(tmp_path):
    place, settings = OutputDirectory.of(str(tmp_path / "out")), {"lr": 1}
    with place.working(settings):
        for attempt in (lambda: place.check(settings, RunOptions(resume=True)), place.working(settings).__enter__):
            with pytest.raises(TrainingError, match=r"another run is at work in `.*out\.training`; wait"):
                attempt()
    assert not list(tmp_path.iterdir())
    place.check(settings, RunOptions(resume=True))


def test_a_run_that_failed_lets_go(tmp_path):
    place, settings = OutputDirectory.of(str(tmp_path / "out")), {"lr": 1}
    with pytest.raises(KeyboardInterrupt), place.working(settings):
        raise KeyboardInterrupt
    with place.working(settings) as folder:
        assert folder.is_dir()
