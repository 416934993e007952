"""Arrays of other libraries, such as tensors of torch, where those of NumPy are taken: by DLPack, without a copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimformer.formats import pack
from slimformer.formats.layout import TERNARY
from slimformer.runtime.checkpoint import rule_of
from slimformer.runtime.native import is_built, kernels
from tests.runtime.test_encoder import same_bits

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

RULE = rule_of(TERNARY)


def numpy(tensor):
    return tensor.numpy()


def itself(tensor):
    return tensor


class Exporter:
    """An array that is known by the protocol alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **settings):
        return self.tensor.__dlpack__(**settings)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def packed(rows, columns):
    codes = torch.randint(-1, 2, (rows, columns), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    return pack(codes, TERNARY), drawn(rows, 1).abs()


def product_of_codes(as_array):
    codes, scales = packed(20, 24)
    made = kernels().Matrix(20, 24, RULE, 24)
    made.set_codes(0, as_array(codes), as_array(scales), 24, RULE, as_array(drawn(20)))
    return made.multiply(as_array(drawn(7, 24)))


def product_of_floats(as_array):
    made = kernels().Matrix(20, 24)
    made.set_floats(0, as_array(drawn(20, 24)), as_array(drawn(20)))
    return made.multiply(as_array(drawn(7, 24)))


def product_of_bfloat16(as_array):
    made = kernels().Matrix(20, 24, bfloat16=True)
    made.set_bfloat16(0, as_array(drawn(20, 24).bfloat16().view(torch.uint16)), None)
    return made.multiply(as_array(drawn(7, 24)))


def encoder_of(as_array, table=None, patches=False):
    """An encoder all of whose numbers came as arrays; it looks rows up in what it was handed over."""
    native = kernels()

    def matrix(rows, columns):
        made = native.Matrix(rows, columns)
        made.set_floats(0, as_array(drawn(rows, columns)), as_array(drawn(rows)))
        return made

    norm = native.Norm(as_array(drawn(16)), as_array(drawn(16)), 1e-6)
    shape = {"hidden": 16, "heads": 2, "longest": 9, "activation": "gelu", "pre_norm": False, "gated": False}
    made = native.Encoder(
        **shape,
        words=as_array(drawn(2 if patches else 30, 16)) if table is None else table,
        positions=as_array(drawn(9, 16)),
        types=None if patches else as_array(drawn(2, 16)),
        norm=norm,
        projection=matrix(16, 12) if patches else None,
        position_offset=0,
        images=patches,
    )
    made.set_position_bias(as_array(drawn(2, 17)))
    matrices = {"qkv": matrix(48, 16), "output": matrix(16, 16), "up": matrix(32, 16), "down": matrix(16, 32)}
    turned = native.Rotation(as_array(drawn(9, 4)), as_array(drawn(9, 4)))
    made.add_block(**matrices, attention_norm=norm, output_norm=norm, window=0, rotation=turned)
    return made


def tokens(as_array):
    ids, types, starts = [3, 4, 5, 29, 0], [0, 1, 1, 0, 0], [0, 3, 5]
    return [as_array(torch.tensor(each, dtype=torch.int32)) for each in (ids, types, starts)]


def forward(as_array):
    return encoder_of(as_array).run(*tokens(as_array))


def forward_with_bfloat16(as_array):
    return encoder_of(as_array, as_array(drawn(30, 16).bfloat16().view(torch.uint16))).run(*tokens(as_array))


def forward_with_codes(as_array):
    codes, scales = packed(30, 16)
    return encoder_of(as_array, (as_array(codes), as_array(scales), 16, 16, RULE)).run(*tokens(as_array))


def forward_of_images(as_array):
    return encoder_of(as_array, patches=True).run_images(as_array(drawn(3, 7, 12)))


def forward_of_a_task(as_array):
    native = kernels()
    task = native.Task(16)
    kept = (drawn(48, 16) > 0).to(torch.uint8)
    task.add_block(native.Mask(as_array(kept)), None, None, None)
    task.pool("first")
    return np.concatenate(encoder_of(as_array).run_tasks(*tokens(as_array), [task, task]))


@pytest.mark.parametrize("as_array", [itself, Exporter])
@pytest.mark.parametrize(
    "compute",
    [
        product_of_codes,
        product_of_floats,
        product_of_bfloat16,
        forward,
        forward_with_bfloat16,
        forward_with_codes,
        forward_of_images,
        forward_of_a_task,
    ],
)
def test_tensors_are_taken_where_arrays_are(compute, as_array):
    expected = compute(numpy)
    assert np.isfinite(expected).all()
    assert expected.any()
    assert same_bits(compute(as_array), expected)


def test_a_table_is_read_where_it_lies_as_long_as_it_is_needed():
    table = drawn(30, 16)
    made = encoder_of(itself, table)
    before = made.run(*tokens(itself))
    table.mul_(2)
    after = made.run(*tokens(itself))
    assert not same_bits(after, before)
    del table
    drawn(3000, 16)  # which would take its memory
    assert same_bits(made.run(*tokens(itself)), after)


OTHERS = {
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "whole": lambda x: x.mul(10).int(),
    "with a gradient": lambda x: x.clone().requires_grad_(),
}
REFUSED = {
    "a row": lambda x: x[0],
    "narrow": lambda x: x[:, :-1],
    "elsewhere": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "complex": lambda x: x.to(torch.complex64),
    "a list": lambda x: x.tolist(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_numbers_of_other_types_are_read_as_floats(other):
    made, rows = kernels().Matrix(20, 24), OTHERS[other](drawn(7, 24))
    made.set_floats(0, drawn(20, 24), None)
    assert same_bits(made.multiply(rows), made.multiply(rows.detach().float()))


@pytest.mark.parametrize("wrong", REFUSED)
def test_tensors_of_other_kinds_are_refused(wrong):
    made = kernels().Matrix(20, 24)
    with pytest.raises((TypeError, ValueError)):
        made.multiply(REFUSED[wrong](drawn(7, 24)))


def test_rows_that_lie_apart_are_put_together():
    made, rows = kernels().Matrix(20, 24), drawn(24, 20).T
    made.set_floats(0, drawn(20, 24), None)
    assert not rows.is_contiguous()
    assert same_bits(made.multiply(rows[:7].contiguous()), made.multiply(drawn(24, 20).T[:7]))
