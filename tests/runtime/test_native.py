"""Which kernels there are, and which of them compute."""

from __future__ import annotations

import os
import shutil

import pytest

from slimformer.errors import ConfigError
from slimformer.runtime.native import OFF, VARIABLE, describe_runtime, instruction_set, is_built, kernels

COMPILERS = (os.environ.get("CXX", "c++"), "g++", "clang++")
built = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")


@pytest.mark.skipif(os.environ.get(VARIABLE) == OFF, reason=f"{VARIABLE} is `{OFF}`")
def test_where_there_is_a_compiler_the_kernels_are_built():
    if not any(shutil.which(each) for each in COMPILERS):
        pytest.skip("there is no C++ compiler")
    assert kernels().instruction_sets()[-1] == "portable"  # else all other tests of the engine would be skipped


@built
def test_scalar_is_the_portable_set(monkeypatch):
    monkeypatch.setenv(VARIABLE, "scalar")
    assert instruction_set() == "portable"
    assert describe_runtime().instruction_set == "portable"


@built
def test_a_set_that_is_not_here_is_refused_by_name(monkeypatch):
    monkeypatch.setenv(VARIABLE, "avx9")
    with pytest.raises(ConfigError, match=r"is `avx9`, and this machine has .*portable; give one of these, or `none`"):
        instruction_set()
