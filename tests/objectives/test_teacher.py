"""The teacher's records, kept for the next time."""

from __future__ import annotations

import pytest
import torch

from slimformer.errors import ConfigError
from slimformer.objectives import TeacherCache
from slimformer.objectives.recording import Recorder, Request
from tests import zoo

NAMES = ("1.q", "1.v", "pooled.mean")


def batch(side):
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    ids = torch.arange(12).reshape(3, 4) + 5
    if side == "left":
        mask, ids = mask.flip(1), ids.flip(1)
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_read_is_what_was_computed(tmp_path, side):
    teacher = Recorder(zoo.build("bert"), Request.of([1], ("q", "v"), "pooled.mean"))
    cache, inputs, calls = TeacherCache(tmp_path, NAMES, "t"), batch(side), []

    def compute(batch):
        calls.append(1)
        with torch.no_grad():
            return teacher(batch)

    computed, read = cache.get(inputs, compute), cache.get(inputs, compute)
    assert len(calls) == 1
    counts = inputs["attention_mask"].bool()
    for name in NAMES:
        at = counts if name != "pooled.mean" else slice(None)
        assert torch.equal(computed[name][at], read[name][at]), name


def test_an_example_is_known_whatever_it_is_padded_to(tmp_path):
    cache, inputs = TeacherCache(tmp_path, ("q",), "t"), batch("right")
    cache.get(inputs, lambda _: {"q": torch.ones(3, 4, 2)})
    short = {name: value[1:2, :2] for name, value in inputs.items()}
    assert torch.equal(cache.get(short, lambda _: pytest.fail("computed again"))["q"], torch.ones(1, 2, 2))


def test_another_teacher_or_a_torn_file_is_computed_anew(tmp_path):
    inputs = batch("right")
    TeacherCache(tmp_path, ("q",), "one").get(inputs, lambda _: {"q": torch.ones(3, 4, 2)})
    other = TeacherCache(tmp_path, ("q",), "other").get(inputs, lambda _: {"q": torch.zeros(3, 4, 2)})
    assert not other["q"].any()
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:20])
    again = TeacherCache(tmp_path, ("q",), "one").get(inputs, lambda _: {"q": torch.full((3, 4, 2), 2.0)})
    assert again["q"][0, 0, 0] == 2


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("names", [("q",), ("pooled.mean",)])
def test_what_does_not_fit_is_computed_every_time(tmp_path, names):
    def compute(batch):
        rows.append(len(batch["input_ids"]))
        values = batch["input_ids"].float()
        return {"q": values[..., None].expand(-1, -1, 512).clone(), "pooled.mean": values.sum(1, keepdim=True)}

    inputs, rows = batch("right"), []
    first = {name: value[:1] for name, value in inputs.items()}
    TeacherCache(tmp_path, names, "t").get(first, compute)
    there = size_of(tmp_path)
    cache = TeacherCache(tmp_path, names, "t", limit=there + 100)
    for _ in range(2):
        read = cache.get(inputs, compute)[names[0]]
        kept = slice(None) if names[0] != "q" else inputs["attention_mask"].bool()
        assert torch.equal(read[kept], compute(inputs)[names[0]][kept])
    assert rows == [1, 2, 3, 2, 3], "the first row is known, two others are computed, and all of them to compare with"
    assert size_of(tmp_path) == there
    wide = TeacherCache(tmp_path, names, "t", limit=there + 2**20)
    wide.get(inputs, compute)
    assert wide.get(inputs, lambda _: pytest.fail("computed again")) is not None
    assert there < size_of(tmp_path) <= there + 2**20


def test_of_several_processes_each_fills_its_part(tmp_path):
    inputs = batch("right")
    alone = TeacherCache(tmp_path / "alone", ("q",), "t", limit=8000)
    shared = TeacherCache(tmp_path / "shared", ("q",), "t", limit=8000, processes=2)
    for cache in (alone, shared):
        cache.get(inputs, lambda _: {"q": torch.ones(3, 4, 64)})
    assert size_of(tmp_path / "alone") > 0
    assert size_of(tmp_path / "shared") == 0


def test_what_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot keep `1\.scores`"):
        TeacherCache(tmp_path, ("1.scores", "1.v"), "t")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no folder that can be made"):
        TeacherCache(tmp_path / "file", ("q",), "t")
