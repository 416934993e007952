"""The probe is the same everywhere and cannot be fooled."""

from __future__ import annotations

import pytest
import torch

from slimformer.artifact.probe import Probe, ProbeInput, ProbeOutput, ask, batch_for, difference, noise
from slimformer.errors import ArtifactError
from tests.artifact.conftest import tiny_bert
from tests.zoo import FAMILIES, build_headed


def test_noise_is_known_and_spread() -> None:
    golden = [i * 2654435761 % 2**32 / 2**31 - 1 for i in range(1000)]
    assert torch.equal(noise(1000), torch.tensor(golden, dtype=torch.float64).float())
    values = noise(10_000)
    assert values.min() >= -1
    assert values.max() < 1
    assert abs(values.mean()) < 1e-3


def test_batch_has_padding_and_no_padding_elsewhere() -> None:
    batch = {name: entry.tensor() for name, entry in batch_for(tiny_bert()).items()}
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 12)
    assert batch["attention_mask"][1].tolist() == [1] * 8 + [0] * 4
    assert ((batch["input_ids"] == 0) == (batch["attention_mask"] == 0)).all()
    assert batch["input_ids"].max() < 40
    assert len(batch["input_ids"].unique()) > 12


@pytest.mark.parametrize("family", FAMILIES)
def test_same_batch_and_answer_every_time(family: str) -> None:
    model = build_headed(family)
    batch = batch_for(model)
    assert batch == batch_for(build_headed(family, seed=1))
    first = ask(model, batch)
    assert first == ask(model, batch)
    assert "last_hidden_state" in first
    assert all(len(output.values) <= 256 for output in first.values())


def test_json_round_trip() -> None:
    model = tiny_bert()
    batch = batch_for(model)
    probe = Probe(inputs=batch, outputs=ask(model, batch))
    assert Probe.from_bytes(probe.to_bytes(), "probe.json") == probe


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"inputs":{},"outputs":{}}',
        b'{"inputs":{"x":{"dtype":"float32","shape":[99999999999]}},"outputs":{"y":{"shape":[],"values":[]}}}',
        b'{"inputs":{"x":{"dtype":"float32","shape":[-1]}},"outputs":{"y":{"shape":[],"values":[]}}}',
        b'{"inputs":{"x":{"dtype":"object","shape":[1]}},"outputs":{"y":{"shape":[],"values":[]}}}',
        b'{"inputs":{},"outputs":{"y":{"shape":[1],"values":[NaN]}}}',
        b'{"inputs":{"x":{"dtype":"int64","shape":[1],"values":[99999999999999999999]}},"outputs":{"y":{"shape":[],'
        b'"values":[]}}}',
        b'{"inputs":{"x":{"dtype":"int64","shape":[2],"values":[1]}},"outputs":{"y":{"shape":[],"values":[]}}}',
    ],
)
def test_forged_probe(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"`probe\.json` is not a probe"):
        Probe.from_bytes(data, "probe.json")


def answer(*values: float, shape: list[int] | None = None) -> dict[str, ProbeOutput]:
    return {"y": ProbeOutput.model_construct(shape=shape or [len(values)], values=list(values))}


def test_difference_is_relative_to_the_scale() -> None:
    assert difference(answer(100.0, 0.0), answer(100.0, 0.005), relative=1e-4, absolute=0) == 0.005
    with pytest.raises(ArtifactError, match=r"`y` differs by 0\.02 where 0\.01 is allowed"):
        difference(answer(100.0, 0.0), answer(100.0, 0.02), relative=1e-4, absolute=0)


def test_nan_never_passes() -> None:
    nan = float("nan")
    for one, other in [(nan, 1.0), (1.0, nan), (nan, nan)]:
        with pytest.raises(ArtifactError, match="differs by nan"):
            difference(answer(0.0, one), answer(0.0, other), relative=1, absolute=1)


def test_shape_and_presence_count() -> None:
    with pytest.raises(ArtifactError, match="is missing"):
        difference(answer(1.0), {}, relative=1, absolute=1)
    with pytest.raises(ArtifactError, match="has shape"):
        difference(answer(1.0), answer(1.0, shape=[1, 1]), relative=1, absolute=1)


def test_input_dtypes() -> None:
    assert ProbeInput(dtype="bool", shape=[2], values=[1, 0]).tensor().tolist() == [True, False]
    assert ProbeInput(dtype="float32", shape=[1, 2]).tensor().shape == (1, 2)
