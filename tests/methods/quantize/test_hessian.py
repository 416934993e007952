"""The largest eigenvalue of a Hessian, against the whole spectrum of small matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.methods.quantize.analysis import largest_eigenvalue


def surface(matrix, dtype=torch.float64):
    """A quadratic loss with this Hessian, and the two parts of its point."""
    size = len(matrix)
    parts = [torch.ones(count, dtype=dtype, requires_grad=True) for count in (size // 2, size - size // 2)]
    point = torch.cat(parts)
    return 0.5 * point @ torch.as_tensor(matrix, dtype=dtype) @ point, parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("low", "high"), [(-300.0, 100.0), (-300.0, 1.0), (-3.0, 100.0)])
def test_a_dominant_negative_eigenvalue_in_a_large_flat_space_hides_nothing(low, high, dtype):
    matrix = np.diag([low, high, *[0.0] * 998])
    assert largest_eigenvalue(*surface(matrix, dtype)) == pytest.approx(high, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    spectrum=st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=2, max_size=12),
    flat=st.integers(0, 60),
    seed=st.integers(0, 2**16),
)
def test_the_value_is_that_of_the_whole_spectrum(spectrum, flat, seed):
    values = np.array([*spectrum, *[0.0] * flat])
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    matrix = basis @ np.diag(values) @ basis.T
    matrix = (matrix + matrix.T) / 2
    result = largest_eigenvalue(*surface(matrix), iterations=80, seed=seed, tolerance=1e-8)
    assert result == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-5, abs=1e-6 * np.abs(values).max() + 1e-12)
