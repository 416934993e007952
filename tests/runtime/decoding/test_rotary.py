"""How fast positions turn, against Transformers."""

from __future__ import annotations

import numpy as np
import pytest
import transformers as hf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.decoding.rotary import frequencies

LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("rule", [LLAMA_3, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}])
def test_rules_are_those_of_transformers(rule, width):
    config = hf.LlamaConfig(head_dim=width, rope_parameters=rule)
    expected, scale = ROPE_INIT_FUNCTIONS[rule["rope_type"]](config)
    assert scale == 1
    np.testing.assert_allclose(frequencies({"rope_parameters": rule}, width, "m"), expected.numpy(), rtol=1e-6)


def test_configs_of_before_are_read():
    now = frequencies({"rope_parameters": LLAMA_3}, 64, "m")
    before = {name: value for name, value in LLAMA_3.items() if name != "rope_theta"}
    assert (frequencies({"rope_theta": 500000.0, "rope_scaling": before}, 64, "m") == now).all()
    plain = frequencies({"rope_theta": 1e4, "rope_scaling": None}, 64, "m")
    assert (frequencies({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64, "m") == plain).all()
    assert (frequencies({}, 64, "m") == plain).all()


@pytest.mark.parametrize(
    "rule",
    [
        {"rope_type": "yarn"},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": "a"},
        {"rope_theta": 1},
        {"rope_theta": 10**400},
        {**LLAMA_3, "low_freq_factor": 0},
        ["default"],
    ],
)
def test_other_rules_are_refused_by_name(rule):
    with pytest.raises(EngineError, match="`m`"):
        frequencies({"rope_parameters": rule}, 16, "m")
