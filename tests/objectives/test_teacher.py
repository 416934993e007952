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

    def compute():
        calls.append(1)
        with torch.no_grad():
            return teacher(inputs)

    computed, read = cache.get(inputs, compute), cache.get(inputs, compute)
    assert len(calls) == 1
    counts = inputs["attention_mask"].bool()
    for name in NAMES:
        at = counts if name != "pooled.mean" else slice(None)
        assert torch.equal(computed[name][at], read[name][at]), name


def test_an_example_is_known_whatever_it_is_padded_to(tmp_path):
    cache, inputs = TeacherCache(tmp_path, ("q",), "t"), batch("right")
    cache.get(inputs, lambda: {"q": torch.ones(3, 4, 2)})
    short = {name: value[1:2, :2] for name, value in inputs.items()}
    assert torch.equal(cache.get(short, lambda: pytest.fail("computed again"))["q"], torch.ones(1, 2, 2))


def test_another_teacher_or_a_torn_file_is_computed_anew(tmp_path):
    inputs = batch("right")
    TeacherCache(tmp_path, ("q",), "one").get(inputs, lambda: {"q": torch.ones(3, 4, 2)})
    other = TeacherCache(tmp_path, ("q",), "other").get(inputs, lambda: {"q": torch.zeros(3, 4, 2)})
    assert not other["q"].any()
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:20])
    again = TeacherCache(tmp_path, ("q",), "one").get(inputs, lambda: {"q": torch.full((3, 4, 2), 2.0)})
    assert again["q"][0, 0, 0] == 2


def test_what_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot keep `1\.scores`"):
        TeacherCache(tmp_path, ("1.scores", "1.v"), "t")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no folder that can be made"):
        TeacherCache(tmp_path / "file", ("q",), "t")
