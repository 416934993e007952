"""Number formats: what is registered is whole, and what they show fits where they are stored."""

from __future__ import annotations

import pytest
import torch

from slimformer.errors import FormatError, RegistryError
from slimformer.formats import Granularity, NumberFormat, PackedWeight, find_format, find_layout
from slimformer.formats.integer import INT4
from slimformer.registry import FORMATS
from slimformer.views import QuantizedView, attach, quantized_weights


@pytest.mark.parametrize("name", FORMATS.names)
def test_a_format_is_registered_by_its_own_name(name):
    assert find_format(name).name == name
    assert FORMATS.help(name)


@pytest.mark.parametrize("name", FORMATS.names)
def test_all_codes_fit_every_layout_and_the_operator_of_onnx(name):
    number_format = find_format(name)
    for layout in number_format.layouts:
        assert set(number_format.codes) <= set(layout.allowed)
        assert find_layout(layout.name) == (number_format, layout)
    form = number_format.onnx
    assert set(number_format.codes) <= set(form.layout.allowed)
    assert (form.layout.digits, form.layout.bytes) == (8 // form.bits, 1)
    # Without a zero point of its own, the operator's is the middle.
    assert form.layout.lowest == -(2 ** (form.bits - 1))


def test_layouts_have_names_of_their_own():
    names = [layout.name for name in FORMATS for layout in find_format(name).layouts]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("columns", [384, 192, 312, 100, 7])
@pytest.mark.parametrize("name", FORMATS.names)
def test_what_a_view_shows_is_what_is_packed(name, columns, small):
    linear = torch.nn.Linear(columns, 12)
    attach(linear, QuantizedView(name))
    (weight,) = quantized_weights(linear)
    packed = PackedWeight.of(weight.format, weight.codes, weight.scales, small=small)
    assert packed.codes.numel() == 12 * packed.layout.bytes_for(columns)
    assert torch.equal(packed.unpack(), weight.codes)
    assert torch.equal(packed.weight(), linear.weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_of_their_own_are_the_same_in_the_view_and_in_the_file(dtype):
    """A format whose codes number its values, as those of NF4 do."""
    thirds = NumberFormat(
        "thirds",
        range(-1, 2),
        lambda units, counts: (units.sign(), units.abs().amax(-1, keepdim=True)),
        find_format("ternary").fast,
        values=(-1 / 3, 0.1, 1.0),
    )
    weight = torch.randn(4, 10).to(dtype)
    for granularity, size in (("matrix", None), ("row", None), ("group", 4)):
        view = QuantizedView(thirds, granularity, size, clip=None)
        codes, scales = view.codes(weight)
        shown = PackedWeight.of(thirds, codes, scales, size).weight()
        assert shown.dtype == dtype
        assert torch.equal(shown, view(weight))
    largest = weight.abs().amax(-1, keepdim=True)
    expected = torch.where(weight > 0, largest, (largest.double() * (-1 / 3)).to(dtype))
    torch.testing.assert_close(QuantizedView(thirds, clip=None)(weight), expected)


def test_impossible_formats_are_named():
    with pytest.raises(RegistryError, match="there is no format `int5`"):
        find_format("int5")
    with pytest.raises(FormatError, match=r"there is no layout `base-7`; known: ternary, ternary-small, binary, int2"):
        find_layout("base-7")
    with pytest.raises(FormatError, match="15 codes and 2 values"):
        NumberFormat("short", INT4.codes, INT4.levels, INT4.fast, values=(0.0, 1.0))
    with pytest.raises(FormatError, match="shared by a `matrix`"):
        Granularity("column")
