"""Checkpoints: sealed by their content, taken after whatever belongs to their step, and whole or not there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from slimformer.errors import TrainingError
from slimformer.train import checkpoints, train
from slimformer.train.checkpoints import read_weights, write_weights
from tests import runs, zoo
from tests.parameters import slow
from tests.runs import files_of_at_most
from tests.train.test_trainer import StopNowError, collate, features, losses, options, still

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def sealed(folder: Path) -> Path:
    checkpoint = folder / "checkpoint-3"
    (checkpoint / "deep").mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"0123456789")
    (checkpoint / "deep" / "state").write_bytes(b"abc")
    checkpoints.seal(checkpoint)
    return checkpoint


@pytest.mark.parametrize("name", ["weights", "deep/state", "sealed.json"])
@pytest.mark.parametrize("content", [b"", b"0123456780", b"abd", b"[]", None])
def test_a_checkpoint_that_has_changed_is_not_used(name, content, tmp_path):
    checkpoint = sealed(tmp_path)
    assert checkpoints.latest(tmp_path) == checkpoint
    if content is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_bytes(content)
    said: list[str] = []
    assert checkpoints.latest(tmp_path, said.append) is None
    expected = [] if name == "sealed.json" and content is None else [f"`{checkpoint}` is damaged"]
    assert [line.partition(" (")[0] for line in said] == expected


def test_the_newest_that_is_whole_is_used(tmp_path):
    checkpoint = sealed(tmp_path)
    later = shutil.copytree(checkpoint, tmp_path / "checkpoint-10")
    assert checkpoints.latest(tmp_path) == later
    (later / "weights").write_bytes(b"9876543210")  # of the same size
    assert checkpoints.latest(tmp_path) == checkpoint


def test_folders_of_others_are_neither_used_nor_removed(tmp_path):
    kept = sealed(tmp_path)
    for name in ("checkpoint-best", "checkpoint-", "checkpoint-7.old"):
        shutil.copytree(kept, tmp_path / name)
    (tmp_path / "checkpoint-12").symlink_to(shutil.copytree(kept, tmp_path / "elsewhere"))
    before = runs.listing(tmp_path)
    assert checkpoints.latest(tmp_path) == kept
    checkpoints.prune(tmp_path, keep=kept)
    assert runs.listing(tmp_path) == before


def test_weights_that_have_changed_in_their_file_are_refused(tmp_path):
    path = tmp_path / "best.safetensors"
    write_weights(zoo.build("bert"), path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainingError, match="are not what was written"):
        read_weights(zoo.build("bert"), path)
    path.write_bytes(content[:1000])
    with pytest.raises(TrainingError, match="is damaged"):
        read_weights(zoo.build("bert"), path)


def once(folder: Path, scores: Iterator[float] | None = None, **settings):
    """A short run; with scores it is measured on dev, and stops there when they have run out."""
    model = still()

    def evaluation(_):
        try:
            return {"score": next(scores)}
        except StopIteration as ended:
            raise StopNowError from ended

    measured = {} if scores is None else {"evaluation": evaluation, "primary": "score"}
    trained = train(model, options(**settings), features(), collate, folder, quiet=True, **measured)
    return trained, model.state_dict()


@pytest.mark.parametrize("steps", [5, 6])  # in the middle of an epoch, and at its end
def test_after_the_last_checkpoint_no_step_is_left_to_train(steps, tmp_path):
    settings = {"schedule": "constant", "save_every": 2, "max_steps": steps}
    whole, weights = once(tmp_path / "run", **settings)
    assert checkpoints.step_of(checkpoints.latest(tmp_path / "run")) == whole.steps == steps
    again, resumed = once(tmp_path / "run", **settings)
    assert again.steps == steps
    assert losses(again) == losses(whole)
    assert all(torch.equal(value, resumed[name]) for name, value in weights.items())


@pytest.mark.parametrize("best", slow([True, False], but=[True]))
@pytest.mark.parametrize("done", slow([0, 1], but=[0]))
def test_an_evaluation_that_was_interrupted_comes_again(done, best, tmp_path):
    """An epoch of 3 steps and a part of one, a checkpoint at each step: the run stops when it is measured."""
    settings = {"schedule": "constant", "save_every": 1, "best": best, "max_steps": 5}
    whole, weights = once(tmp_path / "whole", iter([0.9, 0.5]), **settings)
    assert whole.kept_step == (3 if best else 5)
    with pytest.raises(StopNowError):
        once(tmp_path / "run", iter([0.9, 0.5][:done]), **settings)
    again, resumed = once(tmp_path / "run", iter([0.9, 0.5][done:]), **settings)
    assert (again.steps, again.kept_step) == (whole.steps, whole.kept_step)
    assert all(torch.equal(value, resumed[name]) for name, value in weights.items())


@pytest.mark.parametrize("size", slow([0, 1_000, 20_000, 150_000], but=[20_000]))
def test_a_full_disk_leaves_the_former_checkpoint_and_nothing_half_written(size, tmp_path):
    whole, weights = once(tmp_path / "whole", iter([0.5, 0.9]))
    with pytest.raises(StopNowError):
        once(tmp_path / "run", iter([0.5]), save_every=2)
    before = runs.listing(tmp_path / "run")
    assert "checkpoint-4/sealed.json" in before
    words = r"no space to write .*/run` \(.*\), [\d,]+ bytes are free; .*`--resume`"
    with pytest.raises(TrainingError, match=words), files_of_at_most(size):
        once(tmp_path / "run", iter([0.9]), save_every=2)
    assert runs.listing(tmp_path / "run") == before
    again, resumed = once(tmp_path / "run", iter([0.9]), save_every=2)
    assert again.steps == whole.steps
    assert all(torch.equal(value, resumed[name]) for name, value in weights.items())


class Intruder:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


def test_code_in_a_checkpoint_that_was_sealed_again_does_not_run(tmp_path):
    with pytest.raises(StopNowError):
        once(tmp_path / "run", iter([0.5]), save_every=2)
    latest = checkpoints.latest(tmp_path / "run")
    torch.save(Intruder(tmp_path / "owned"), latest / "optimizer.pt")
    (latest / checkpoints.SEAL).unlink()
    checkpoints.seal(latest)
    with pytest.raises(TrainingError, match="holds code or what no run writes, and is not read"):
        once(tmp_path / "run", iter([0.9]), save_every=2)
    assert not (tmp_path / "owned").exists()
