"""Packed models where the kernels are missing or switched off: as floats in torch, which is said once."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

import slimformer  # noqa: F401  (teaches Transformers to read packed weights)
from slimformer.operators import are_here, coverage, placing
from slimformer.runtime import native
from tests import zoo
from tests.artifact.storage.test_packed import quantized
from tests.operators.test_models import loaded, outputs

REASONS = {"off": "switched off by SLIMFORMER_ISA", "missing": "install a wheel of slimformer-runtime"}


@pytest.fixture(params=REASONS)
def reason(request, monkeypatch):
    """What is said of kernels that are not to be had."""
    if request.param == "off":
        monkeypatch.setenv(native.VARIABLE, native.OFF)
    else:
        monkeypatch.delenv(native.VARIABLE, raising=False)
        monkeypatch.setitem(sys.modules, "slimformer.runtime._native", None)  # as if it had not been compiled
    native._module.cache_clear()
    placing._tell_expanded.cache_clear()
    yield REASONS[request.param]
    native._module.cache_clear()
    placing._tell_expanded.cache_clear()


def test_packed_weights_are_expanded_and_a_line_says_so(reason, tmp_path, caplog):
    source = quantized(zoo.build_headed("bert")).eval()
    with caplog.at_level(logging.WARNING, "slimformer"):
        models = [loaded(zoo.build_headed("bert"), tmp_path / name) for name in ("one", "other")]
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()
    inputs = zoo.inputs_for("bert")
    for model in models:
        counted = coverage(model)
        assert counted.expanded
        assert not counted.packed
        assert all(
            torch.equal(one, other) for one, other in zip(outputs(model, inputs), outputs(source, inputs), strict=True)
        )


def test_the_kernels_are_said_to_be_absent(reason):
    assert not native.is_built()
    assert not are_here()
    with pytest.raises(native.ConfigError, match=reason):
        native.instruction_set()
    with pytest.raises(native.ConfigError, match=reason):
        native.describe_runtime()
