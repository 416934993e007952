"""Models that tell positions by turning, with configs as anyone may have changed them."""

from __future__ import annotations

import pytest

from slimformer.runtime.building import ModelParts
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import is_built
from tests.fuzz import seeds

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")


def turning_by(theta):
    config, tensors = seeds.rotary()
    config["rope_parameters"]["full_attention"]["rope_theta"] = theta
    return NativeEncoder(ModelParts("rotary", config, tensors), threads=1)


@pytest.mark.parametrize("theta", [2, 160000.0, 10**30])
def test_angles_follow_the_base(theta):
    assert turning_by(theta).run([[5, 6, 7], [8]]).shape == (2, 3)


@pytest.mark.parametrize("theta", [10**400, float("inf"), float("nan"), 1, -2.0, True, "2", None])
def test_a_base_that_is_no_number_of_this_kind_is_refused(theta):
    with pytest.raises(EngineError, match="rope_parameters"):
        turning_by(theta)
