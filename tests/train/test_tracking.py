"""What trackers are sent, through Transformers' callbacks, into stand-ins for the services' packages."""

from __future__ import annotations

import sys

import pytest

from slimformer.errors import ConfigError, TrainingError
from slimformer.train import TrainingOptions
from tests.train.test_trainer import losses, run, still

#: As much of each package as Transformers uses: `events` notes what it was told.
PACKAGES = {
    "wandb": """
import types
events, run, failing = [], None, set()
class Config(dict):
    def update(self, values, allow_val_change=False):
        super().update(values)
config = Config()
def note(name, *what):
    if name in failing:
        raise ConnectionError(f"no {name} today\\nand a second line")
    events.append((name, *what))
def init(project=None, **more):
    global run
    note("init", project, more.get("name"))
    run = types.SimpleNamespace(summary={}, _label=lambda **more: None, name=more.get("name"), id="1", url="")
def log(values):
    note("log", values)
def finish():
    global run
    note("finish")
    run = None
def termwarn(*arguments, **more):
    pass
""",
    "trackio": """
import types
events = []
class Config(dict):
    def update(self, values, allow_val_change=False):
        super().update(values)
config = Config()
context_vars = types.SimpleNamespace(current_space_id=types.SimpleNamespace(get=lambda: None))
__version__ = "0.20.0"
def init(project=None, name=None, **more):
    events.append(("init", project, name))
def log(values, step=None):
    events.append(("log", values))
def finish():
    events.append(("finish",))
""",
    "mlflow": """
import types
__version__ = "2.9.0"
events, active = [], None
utils = types.SimpleNamespace(
    validation=types.SimpleNamespace(MAX_PARAM_VAL_LENGTH=250, MAX_PARAMS_TAGS_PER_BATCH=100)
)
def is_tracking_uri_set():
    return False
def active_run():
    return active
def start_run(run_name=None, nested=False):
    global active
    active = types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"))
    events.append(("init", None, run_name))
def log_params(values, synchronous=None):
    pass
def log_metrics(metrics, step=None, synchronous=None):
    events.append(("log", metrics))
def end_run():
    global active
    active = None
    events.append(("finish",))
""",
}


@pytest.fixture
def services(tmp_path, monkeypatch):
    """The stand-ins, installed for one test."""
    for name, content in PACKAGES.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(content)
    errors = tmp_path / "packages" / "wandb" / "sdk" / "lib" / "config_util.py"
    errors.parent.mkdir(parents=True)
    errors.write_text("class ConfigError(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield {name: __import__(name) for name in PACKAGES}
    for name in [each for each in sys.modules if each.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_tracker_gets_the_losses_of_each_run(services, tmp_path, name):
    for folder in ("first", "second"):
        events = services[name].events
        events.clear()
        trained = run(still(), tmp_path / f"{folder}.training", track=(name,))
        assert events[0][0] == "init"
        assert events[0][2] == folder
        assert events[-1] == ("finish",)
        values = [event[1] for event in events if event[0] == "log"]
        sent = [value for each in values for key, value in each.items() if key.removeprefix("train/") == "loss"]
        assert sent == pytest.approx(losses(trained))
        assert {event[0] for event in events[1:-1]} == {"log"}


def test_a_tracker_that_fails_later_is_left_out(services, tmp_path, capsys):
    services["wandb"].failing.add("log")
    trained = run(still(), tmp_path / "run", track=("wandb", "trackio"))
    assert trained.steps == 6
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "wandb" in line]
    assert note == "note: wandb gets nothing any more, training goes on: no log today"
    assert len([event for event in services["trackio"].events if event[0] == "log"]) >= 6


def test_a_tracker_that_cannot_begin_ends_the_run_before_a_step(services, tmp_path):
    services["wandb"].failing.add("init")
    with pytest.raises(TrainingError, match=r"`--track wandb` could not begin: no init today; mend it, or leave it"):
        run(still(), tmp_path / "run", track=("wandb",))
    assert services["wandb"].events == []
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_what_is_not_installed_is_said_in_a_line(tmp_path, name):
    if name in sys.modules:
        pytest.skip(f"{name} is installed here")
    with pytest.raises(TrainingError, match=f"`--track {name}` needs the package `{name}`; run: pip install {name}"):
        run(still(), tmp_path / "run", track=(name,))


def test_event_files_need_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="`track` names `tensorboard`, which writes files; give `tensorboard` a"):
        TrainingOptions.make({"track": "tensorboard"})
    with pytest.raises(ConfigError, match="track"):
        TrainingOptions.make({"track": "wandb,tensorbord"})
    assert TrainingOptions.make({"track": "wandb, mlflow"}).track == ("wandb", "mlflow")
    run(still(), tmp_path / "run", track=("tensorboard",), tensorboard=str(tmp_path / "events"))
    assert list((tmp_path / "events").iterdir())
