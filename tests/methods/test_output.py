"""Where a run works: nobody else does at the same time, and what somebody else put there stays."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack

import pytest

from slimformer.errors import ArtifactError, TrainingError
from slimformer.methods.adapt import AdaptConfig
from slimformer.methods.distill import DistillConfig
from slimformer.methods.finetune import FinetuneConfig
from slimformer.methods.method import RunOptions
from slimformer.methods.output import OutputDirectory
from tests import runs

SETTINGS = {"lr": 1}
RESUME = RunOptions(resume=True)


@pytest.fixture
def place(tmp_path) -> OutputDirectory:
    return OutputDirectory.of(str(tmp_path / "out"))


def test_a_run_keeps_others_out_while_it_works(place, tmp_path):
    with place.working() as folder:
        for begin in (lambda: None, lambda: folder.begin(SETTINGS, resume=False)):
            begin()
            for options in (RESUME, RunOptions()):
                with pytest.raises(TrainingError, match=r"another run is at work in `.*out\.training`; wait"):
                    place.check(SETTINGS, options)
            with pytest.raises(TrainingError, match="another run is at work"):
                place.working().__enter__()
    assert not list(tmp_path.iterdir())
    place.check(SETTINGS, RESUME)


def no_locks(code: int):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_no_locks_are_kept_a_run_goes_on_and_says_so(code, place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fcntl, "flock", no_locks(code))
    place.check(SETTINGS, RunOptions())
    with place.working() as folder:
        folder.begin(SETTINGS, resume=False)
        place.check(SETTINGS, RESUME)
        place.training.clear()  # nobody can tell whether a run is at work there
        assert (folder.path / "settings.json").exists()
    assert not list(tmp_path.iterdir())
    note = capsys.readouterr().err
    assert note.startswith("note: locks are not kept where `")
    assert note.count("\n") == 1


def test_a_lock_that_fails_is_not_another_run(place, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        place.working().__enter__()


def interrupted(place: OutputDirectory) -> None:
    with place.working() as folder:
        folder.begin(SETTINGS, resume=False)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "out"}, "`--out` is `.*out`, which `--model` names and the result does not replace"),
        ({"data": "out"}, "`--out` is `.*out`, which `--data` names and the result does not replace"),
        ({"tensorboard": "out/logs"}, "`--tensorboard` is `.*logs`, inside the result"),
    ],
)
def test_what_a_run_reads_is_not_replaced_by_its_result(place, tmp_path, settings, words):
    (tmp_path / "out").mkdir()
    config = FinetuneConfig.make({name: tmp_path / value for name, value in settings.items()})
    with pytest.raises(TrainingError, match=words):
        place.check_apart(config)


def test_a_student_that_is_trained_on_is_not_replaced_either(place, tmp_path):
    (tmp_path / "out").mkdir()
    config = DistillConfig.make({"teacher": "minilm", "student": tmp_path / "out"})
    with pytest.raises(TrainingError, match="which `--student` names"):
        place.check_apart(config)
    place.check_apart(config, "student")


def test_a_result_does_not_go_into_the_corpus_it_is_learned_from(tmp_path):
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    config = AdaptConfig.make({"corpus": [str(tmp_path / "texts")]})
    with pytest.raises(TrainingError, match="inside the corpus"):
        OutputDirectory.of(str(tmp_path / "texts" / "deep" / "out")).check_apart(config)
    OutputDirectory.of(str(tmp_path / "out")).check_apart(config)


def test_a_result_does_not_go_into_an_artifact(tmp_path):
    (tmp_path / "slimformer.json").write_text("{}")
    with pytest.raises(ArtifactError, match="lies in the artifact"):
        OutputDirectory.of(str(tmp_path / "out")).check(SETTINGS, RunOptions())


def test_a_run_that_failed_lets_go(place, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted(place)
    assert not list(tmp_path.iterdir())
    with place.working() as folder:
        assert folder.path.is_dir()


def test_parents_that_were_made_for_nothing_go_again(tmp_path):
    with pytest.raises(ZeroDivisionError), OutputDirectory.of(str(tmp_path / "a" / "b" / "out")).working():
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_user_is_refused_and_stays(place, tmp_path):
    (tmp_path / "out.training").mkdir()
    (tmp_path / "out.training" / "settings.json").write_text("{}")  # a name that others use as well
    for attempt in (lambda: place.check({}, RESUME), place.working().__enter__):
        with pytest.raises(TrainingError, match=r"out\.training` .* was made by no run, so it is left alone"):
            attempt()
    place.training.clear()
    place.training.remove()
    assert runs.listing(tmp_path) == {"out.training", "out.training/settings.json"}


@pytest.mark.parametrize("options", [RESUME, RunOptions()])
def test_an_unfinished_run_of_an_earlier_version_is_recognised_and_stays(options, place, tmp_path):
    """It has no mark, and its checkpoints are sealed by sizes, which is not enough any more."""
    folder = tmp_path / "out.training"
    (folder / "checkpoint-2").mkdir(parents=True)
    (folder / "checkpoint-2" / "sealed.json").write_text('{"optimizer.pt": 12}')
    (folder / "settings.json").write_text('{"data_digest": "00", "lr": 1}')
    listing = runs.listing(tmp_path)
    for attempt in (lambda: place.check(SETTINGS, options), place.working().__enter__):
        with pytest.raises(TrainingError, match=r"an earlier version .* finish it with that version, or remove"):
            attempt()
    place.training.clear()
    assert runs.listing(tmp_path) == listing


@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_a_link_is_refused_and_not_written_through(target, place, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.training").symlink_to(tmp_path / target)
    for attempt in (lambda: place.check({}, RESUME), place.working().__enter__):
        with pytest.raises(TrainingError, match=r"out\.training` is a link"):
            attempt()
    place.training.clear()
    assert runs.listing(tmp_path) == {"out.training", "elsewhere"}


def test_a_link_inside_is_refused_too(place, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    unfinished(place)
    (tmp_path / "out.training" / "checkpoint-2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TrainingError, match=r"checkpoint-2` is a link"):
        place.check(SETTINGS, RESUME)
    assert (tmp_path / "out.training" / "checkpoint-2").is_symlink()


def unfinished(place: OutputDirectory) -> None:
    """Leave what a run leaves that is killed before its first checkpoint."""
    with place.training.claimed():
        place.training.begin(SETTINGS, resume=False)


def test_notes_of_the_user_outlive_the_run(place, tmp_path):
    unfinished(place)
    (tmp_path / "out.training" / "notes.txt").write_text("lr 1 seems too much")
    with place.working() as folder:
        folder.begin(SETTINGS, resume=True)
        (folder.path / "checkpoint-1").mkdir()
    assert runs.listing(tmp_path) == {"out.training", "out.training/notes.txt"}


def test_the_run_of_another_command_is_not_gone_on_with(place):
    with place.training.claimed():
        place.training.begin({"method": "mask", "anneal": 5, **SETTINGS}, resume=False)
    words = "is one of `slimformer mask`, not of `slimformer finetune`; resume it with that command"
    with pytest.raises(TrainingError, match=words):
        place.check({"method": "finetune", **SETTINGS}, RESUME)


def test_another_run_is_not_taken_up_and_not_removed(place, tmp_path):
    unfinished(place)
    with pytest.raises(TrainingError, match="add `--resume`"):
        place.check(SETTINGS, RunOptions())
    with pytest.raises(TrainingError, match="had `lr` = `1`, not `2`"), place.working() as folder:
        folder.begin({"lr": 2}, resume=True)
    assert (tmp_path / "out.training" / "settings.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{" * 100_000])
def test_settings_that_cannot_be_read_are_an_error(text, place, tmp_path):
    unfinished(place)
    (tmp_path / "out.training" / "settings.json").write_text(text)
    with pytest.raises(TrainingError, match=r"settings\.json` .* to start anew"):
        place.check(SETTINGS, RESUME)


def test_checkpoints_without_settings_are_not_gone_on_with(place):
    """A run that is killed while its folder is removed leaves some of it."""
    with place.working() as folder:
        (folder.path / "checkpoint-3").mkdir()
        (folder.path / "best.safetensors").touch()
        folder.begin(SETTINGS, resume=True)
        assert {path.name for path in folder.path.iterdir()} == {".slimformer", "settings.json"}


def test_a_run_that_ends_leaves_the_folder_of_one_that_has_just_begun(place):
    """Between the removal of a folder and the end of its claim another run may have made it anew."""
    with ExitStack() as claims:
        with place.training.claimed():
            place.training.remove()
            claims.enter_context(place.training.claimed())
        place.training.begin(SETTINGS, resume=False)
        place.training.remove()
    assert not place.training.path.exists()


@pytest.mark.parametrize("name", ["settings.json", "checkpoint-1/sealed.json", "best.safetensors", "corpus.jsonl"])
def test_a_pipe_among_checkpoints_is_refused_and_not_waited_for(name, place, tmp_path):
    unfinished(place)
    path = tmp_path / "out.training" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(TrainingError, match=f"{name}` is neither a file nor a folder; remove it"):
        place.check(SETTINGS, RESUME)


def test_settings_without_end_are_not_read(place, tmp_path):
    unfinished(place)
    os.truncate(tmp_path / "out.training" / "settings.json", 1 << 32)
    with pytest.raises(TrainingError, match=r"cannot be read: it has more than .* bytes"):
        place.check(SETTINGS, RESUME)


@pytest.mark.parametrize(("name", "words"), [("data_digest", "the data of"), ("base_fingerprint", "the base of")])
def test_what_was_changed_since_the_run_began_is_named(name, words, place):
    with place.training.claimed():
        place.training.begin({**SETTINGS, name: "one"}, resume=False)
        with pytest.raises(TrainingError, match=f"{words} the run in .* was changed since it began; put it back"):
            place.training.begin({**SETTINGS, name: "other"}, resume=True)


def test_files_of_the_user_in_a_checkpoint_outlive_the_run(place, tmp_path):
    unfinished(place)
    for name in ("checkpoint-7/thesis.txt", "checkpoint-7/weights.safetensors", "checkpoint-\u0663/x.json"):
        (tmp_path / "out.training" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "out.training" / name).write_text("mine")
    with place.working():
        pass
    left = {path.relative_to(tmp_path / "out.training").as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"checkpoint-7/thesis.txt", "checkpoint-\u0663/x.json"}


def test_a_folder_that_is_moved_away_during_a_run_is_named(place, tmp_path):
    words = r"out\.training` cannot be written any more: no such file or directory; leave the folder alone"

    def lose() -> None:
        with place.working() as folder:
            folder.path.rename(tmp_path / "kept")
            (folder.path / "best.safetensors").write_text("")

    with pytest.raises(TrainingError, match=words):
        lose()


def test_two_names_of_one_place_have_one_run(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    with (
        OutputDirectory.of(str(tmp_path / "out")).working(),
        pytest.raises(TrainingError, match="another run is at work"),
    ):
        OutputDirectory.of(str(tmp_path / "link")).check(SETTINGS, RunOptions())
