"""Sizes nested in a decoder on the native engine, against the same sizes taken out."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import slimformer
from slimformer.errors import ArtifactError, DataError, SizeError
from slimformer.inference.extraction import extract
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.native import VARIABLE, is_built, kernels
from slimformer.sizes import Elastic, name_sizes
from slimformer.sizes.table import PUBLISHED, SIZES
from tests.runtime.decoding.elastic import elastic_folder
from tests.runtime.test_encoder import same_bits

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

#: How the weights of an elastic decoder may be stored.
KINDS = {
    "float32": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "qwen3": {"family": "qwen3"},
    "gemma": {"family": "gemma"},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "ternary": {"numbers": {}},
    "int4": {"numbers": {"weights": "int4"}},
    "int8 in groups": {"numbers": {"weights": "int8", "granularity": "group", "group_size": 32}},
}
PROMPTS = [[5, 6, 7, 8, 9], [11], list(range(20, 53))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sizes")
    return {name: elastic_folder(folder / str(number), **kind) for number, (name, kind) in enumerate(KINDS.items())}


def logits(decoder, size=None):
    return decoder.run(PROMPTS, [decoder.cache() for _ in PROMPTS], all_logits=True, size=size)


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_computes_what_it_computes_taken_out(folders, kind, tmp_path, monkeypatch):
    decoder = NativeDecoder(folders[kind], threads=1)
    assert decoder.sizes.names == ("S", "M", "XL")
    assert same_bits(logits(decoder, "XL"), logits(decoder))
    for size in ("S", "M", "S,XL,M"):
        # Blocks of different widths are none of a config that the engine reads; one by one they are sizes themselves.
        nested = logits(decoder, size)
        assert not same_bits(nested, logits(decoder))
        if "," not in size:
            extract(folders[kind], tmp_path / size, allocation=size)
            assert same_bits(nested, logits(NativeDecoder(tmp_path / size, threads=1)))
        for isa in kernels().instruction_sets():
            monkeypatch.setenv(VARIABLE, isa)
            assert same_bits(logits(NativeDecoder(folders[kind], threads=2), size), nested)
        monkeypatch.delenv(VARIABLE)


@pytest.mark.parametrize("kind", ["float32", "gemma", "biased"])
def test_sizes_are_those_of_torch(folders, kind):
    model, decoder = slimformer.load(folders[kind]).model, NativeDecoder(folders[kind], threads=1)
    for size in ("S", 0.55, "S,XL,M", ["M", 1.0, 0.25]):
        with Elastic.of(model).at(size), torch.no_grad():
            expected = np.concatenate([model(torch.tensor([ids])).logits[0].numpy() for ids in PROMPTS])
        np.testing.assert_allclose(logits(decoder, size), expected, rtol=1e-4, atol=2e-5)


def test_sizes_go_on_from_one_cache(folders):
    decoder = NativeDecoder(folders["float32"], threads=1)
    cache, other = decoder.cache(), decoder.cache()
    first = decoder.run([[5, 6, 7]], [cache], size="S")
    decoder.run([[5, 6, 7]], [other])
    assert same_bits(first, logits(decoder, "S")[2:3])
    mixed, plain = decoder.run([[8]], [cache]), decoder.run([[8]], [other])
    assert not same_bits(mixed, plain)  # what S has read is seen by XL
    cache.crop(0)
    assert same_bits(decoder.run([[5, 6, 7, 8]], [cache]), plain)


def test_published_names_are_known(tmp_path):
    folder = elastic_folder(tmp_path / "elastic")
    record = {"published": [{"name": "phone", "allocation": "S,M,XL"}]}
    (folder / PUBLISHED).write_text(json.dumps(record))
    decoder = NativeDecoder(folder, threads=1)
    assert same_bits(logits(decoder, "phone"), logits(decoder, "S,M,XL"))
    record["published"][0]["allocation"] = "S,M"
    (folder / PUBLISHED).write_text(json.dumps(record))
    with pytest.raises(ArtifactError, match=r"does not fit the model: the allocation names 2 blocks"):
        NativeDecoder(folder)
    (folder / PUBLISHED).unlink()
    (folder / SIZES).write_text('{"sizes": []}')
    with pytest.raises(ArtifactError, match=r"sizes.json` has a wrong `sizes`"):
        NativeDecoder(folder)
    (folder / SIZES).write_text('{"sizes": [{"name": "S", "neurons": 0.5}]}')
    with pytest.raises(ArtifactError, match=r"does not fit the model: `neurons` is 0.5; shares lie above 0 and end"):
        NativeDecoder(folder)


def test_what_no_part_in_memory_is_gets_refused(tmp_path):
    whole = elastic_folder(tmp_path / "whole", intermediate_size=70)
    decoder = NativeDecoder(whole)
    assert len(decoder.generate([[5, 6]], 3, size="XL")[0]) == 3
    for call in (decoder.run, lambda tokens, caches, size: decoder.generate(tokens, 3, size=size)):
        with pytest.raises(SizeError, match=r"block 0 has 70 neurons, .* a multiple of 16"):
            call([[5, 6]], [decoder.cache()], size="S")
    heads = NativeDecoder(elastic_folder(tmp_path / "heads", shares=(0.5, 1.0), heads=(0.5, 1.0)))
    with pytest.raises(SizeError, match=r"block 0 has fewer heads at `S`, .* leave the engine out"):
        heads.run([[5]], [heads.cache()], size="S")
    depth = elastic_folder(tmp_path / "depth", shares=(0.5, 1.0))
    table = json.loads((depth / SIZES).read_text())
    (depth / SIZES).write_text(json.dumps({**table, "skip": True}))
    skips = NativeDecoder(depth)
    with pytest.raises(SizeError, match=r"block 0 is skipped at `0,S,S`, .* leave the engine out"):
        skips.run([[5]], [skips.cache()], size="0,S,S")


def test_sizes_that_there_are_not_are_refused(folders, tmp_path):
    decoder = NativeDecoder(folders["float32"])
    for size in ("XXL", "S,S", 0.3, "0,S,S"):
        with pytest.raises(SizeError):
            decoder.run([[5]], [decoder.cache()], size=size)
    plain = extract(folders["float32"], tmp_path / "plain", allocation="M")
    assert plain.bytes > 0
    with pytest.raises(SizeError, match=r"size `S` is asked for, and `.*` has one size only"):
        NativeDecoder(tmp_path / "plain").run([[5]], [], size="S")
    nested = NativeDecoder(tmp_path / "plain", sizes=name_sizes((0.5, 1)))
    with pytest.raises(SizeError, match="block 0 has 35 neurons"):
        nested.generate([[5]], 2, size="S")
    with pytest.raises(SizeError, match="end with 1"):
        NativeDecoder(folders["float32"], sizes=name_sizes((0.5, 1))[:1])


def test_the_kernels_check_what_they_are_given(folders):
    decoder = NativeDecoder(folders["float32"], threads=1)
    ids, starts, caches = np.array([5], np.int32), np.array([0, 1], np.int32), [decoder.cache()]
    run = decoder._decoder.run
    for neurons in ([16, 16], [0, 16, 16], [-1, 16, 16], [16, 65, 16]):
        with pytest.raises(kernels().InputError):
            run(ids, starts, caches, False, np.array(neurons, np.int32))
    with pytest.raises(kernels().InputError, match="another width"):
        run(ids, starts, caches, False, None, kernels().Matrix(5, 7))
    for tokens in ([], [-1], [99]):
        with pytest.raises(kernels().InputError):
            decoder._decoder.part_of_head(np.array(tokens, np.int32))
    assert caches[0].length == 0
    with pytest.raises(DataError):
        decoder.run([[5]], [], size="S")


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_head_is_that_part_of_the_logits(folders, kind):
    decoder, tokens = NativeDecoder(folders[kind], threads=1), np.array([98, 3, 40, 3, *range(50, 80)], np.int32)
    ids, starts = np.array([5, 6, 7], np.int32), np.array([0, 3], np.int32)
    caches = decoder.cache(), decoder.cache()
    part = decoder._decoder.run(ids, starts, caches[:1], True, None, decoder._decoder.part_of_head(tokens))
    assert same_bits(part, decoder._decoder.run(ids, starts, caches[1:], True)[:, tokens])


def test_torch_is_not_imported(folders):
    code = f"""
import sys
from slimformer.runtime.decoder import NativeDecoder
decoder = NativeDecoder({str(folders["ternary"])!r})
assert decoder.generate([[5, 6, 7]], 6, draft="S") == decoder.generate([[5, 6, 7]], 6)
assert not {{"torch", "transformers"}} & set(sys.modules), "imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
