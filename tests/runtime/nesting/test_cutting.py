"""Blocks cut out of files beside those that torch takes out of a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimformer.errors import SizeError
from slimformer.formats.packing import pack, unpack
from slimformer.operators import expand
from slimformer.runtime.checkpoint import LAYOUTS
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import is_built
from slimformer.runtime.nesting.cutting import first_codes
from slimformer.sizes import Elastic, make_elastic, name_sizes
from slimformer.sizes.table import PUBLISHED, SIZES, PublishedRecord, SizesRecord, write_published
from tests.parameters import slow
from tests.runtime import test_encoder

needs_kernels = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
TEXTS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "modernbert")
#: Families whose heads cannot be taken from single blocks.
PINNED = ("mpnet",)


@given(
    st.sampled_from(sorted(LAYOUTS)), st.integers(1, 3), st.integers(1, 30), st.integers(0, 30), st.integers(0, 2**31)
)
def test_the_first_codes_are_packed_as_if_alone(name, rows, kept, more, seed):
    layout = LAYOUTS[name]
    codes = np.random.default_rng(seed).choice(np.array(layout.allowed, np.int8), (rows, kept + more))
    first = first_codes(pack(torch.from_numpy(codes), layout).numpy(), layout, kept)
    alone = pack(torch.from_numpy(np.ascontiguousarray(codes[:, :kept])), layout)
    np.testing.assert_array_equal(first, alone.numpy())
    assert unpack(alone, layout, kept).tolist() == codes[:, :kept].tolist()


def save(folder, family, *, packed=False, **sizes):
    """A bare model in torch with nested sizes, and a folder of it as an elastic artifact has it."""
    model = test_encoder.save(folder, family, "Model", floats=not packed)
    expand(model)
    make_elastic(model, name_sizes(**sizes))
    (folder / SIZES).write_text(SizesRecord.of(Elastic.of(model)).to_json())
    return model


def check_alike(folder, model, size, **tolerance):
    """The hidden states of a text or image at a size are those of torch."""
    native = NativeEncoder(folder, threads=1, size=size)
    with Elastic.of(model).at(size), torch.inference_mode():
        if native.reads_images:
            pixels = torch.rand(1, 3, 16, 16)
            expected, rows = model(pixel_values=pixels), native.run_images(pixels.numpy())
        else:
            ids = torch.arange(5, 25)[None]
            expected, rows = model(input_ids=ids), native.run(ids.tolist())
    np.testing.assert_allclose(rows, expected.last_hidden_state[0].numpy(), **tolerance)


@needs_kernels
@pytest.mark.parametrize("family", slow([*TEXTS, "vit", "deit"], but=["bert", "modernbert", "vit"]))
def test_every_size_of_every_family_is_that_of_torch(tmp_path, family):
    heads = None if family in PINNED else (0.5, 0.5, 1)
    shares = {"neurons": (0.25, 0.5, 1), "heads": heads, "depth": (0.34, 1, 1), "output": (0.5, 1, 1)}
    model = save(tmp_path, family, **shares)
    for size in ("S", "M", "XL", "0.5", "M,0,S" if family != "mpnet" else "M,S,0", "XL,S,M"):
        check_alike(tmp_path, model, size, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("family", slow(["bert", "modernbert"], but=["modernbert"]))
def test_packed_weights_are_cut_as_they_lie(tmp_path, family):
    model = save(tmp_path, family, packed=True, neurons=(0.3, 0.5, 1), heads=(0.5, 1, 1))
    for size in ("S", "M", "XL"):
        check_alike(tmp_path, model, size, atol=0.05)
    small, whole = (NativeEncoder(tmp_path, size=size) for size in ("S", None))
    assert small.run([[5, 6, 7]]).shape == whole.run([[5, 6, 7]]).shape


@needs_kernels
def test_published_sizes_have_names(tmp_path):
    model = save(tmp_path, "bert", neurons=(0.5, 1))
    (tmp_path / PUBLISHED).write_bytes(write_published([PublishedRecord("phone", "S,XL,S")]))
    check_alike(tmp_path, model, "S,XL,S", atol=1e-4)
    rows = [NativeEncoder(tmp_path, size=size).run([[5, 6]]) for size in ("phone", "S,XL,S")]
    np.testing.assert_array_equal(*rows)


@needs_kernels
def test_sizes_that_there_are_not_are_refused(tmp_path):
    save(tmp_path, "modernbert", neurons=(0.5, 1), depth=(0.5, 1))
    for size, words in (("L", "there is no size `L`"), ("0,S,S", "block 0 cannot be skipped"), ("S,S", "2 blocks")):
        with pytest.raises(SizeError, match=words):
            NativeEncoder(tmp_path, size=size)
    (tmp_path / SIZES).unlink()
    with pytest.raises(SizeError, match="has one size only; leave it out"):
        NativeEncoder(tmp_path, size="S")
