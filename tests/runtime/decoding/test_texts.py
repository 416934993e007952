"""Texts that a decoder on the native engine goes on with, against the pipeline of Transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import transformers as hf

import slimformer
from slimformer.errors import ConfigError, DataError, SizeError
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.decoding.choosing import Sampling
from slimformer.runtime.decoding.texts import NativeGenerator
from slimformer.runtime.native import is_built
from slimformer.sizes import Draft
from tests import runs

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
TEXTS = ["a lovely film", "dull", "great fun and too long"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return runs.decoder(tmp_path_factory.mktemp("texts") / "decoder")


def test_texts_are_those_of_the_pipeline(folder):
    generator = NativeGenerator(folder, threads=1)
    pipeline = hf.pipeline("text-generation", str(folder), dtype=torch.float32)
    for text in TEXTS:
        expected = pipeline(text, max_new_tokens=9, do_sample=False)[0]["generated_text"]
        (answer,) = generator(text, max_new_tokens=9, do_sample=False)
        # The pipeline decodes what is added by itself, where some tokenizers lose the space before the first word.
        assert answer["generated_text"].replace(" ", "") == expected.replace(" ", "")
        assert answer["generated_text"].startswith(f"{text} ")
    together = generator(TEXTS, max_new_tokens=9, do_sample=False)
    assert together == [generator(text, max_new_tokens=9, do_sample=False) for text in TEXTS]
    assert together == generator(TEXTS, max_new_tokens=9, do_sample=False, batch_size=2)
    added = generator(TEXTS[0], max_new_tokens=9, do_sample=False, return_full_text=False)
    assert [{"generated_text": TEXTS[0] + added[0]["generated_text"]}] == together[0]


def test_a_folder_says_when_to_stop_and_how_to_draw(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = tmp_path / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": [3, 4], "do_sample": True, "temperature": 1.5, "top_k": None}))
    generator = NativeGenerator(tmp_path, threads=1)
    assert generator.settings.stop == (3, 4)
    assert generator.settings.sampling == Sampling(temperature=1.5)
    assert generator("dull", max_new_tokens=20) == generator("dull", max_new_tokens=20, sampling=Sampling(1.5))
    settings.write_text(json.dumps({"do_sample": True, "top_k": 0, "repetition_penalty": 1.0, "bad_words_ids": None}))
    assert NativeGenerator(tmp_path, threads=1).settings.sampling == Sampling(top_k=None)
    for wrong in (
        *('{"eos_token_id": "a"}', "[]", "{", '{"eos_token_id": [-1]}', '{"repetition_penalty": 1.1}'),
        *('{"do_sample": true, "temperature": 0}', '{"num_beams": 4}'),
    ):
        settings.write_text(wrong)
        with pytest.raises(EngineError):
            NativeGenerator(tmp_path)


def test_what_is_asked_is_checked(folder):
    generator = NativeGenerator(folder, threads=1)
    for texts in ([], None, [5], ("a", None), ["so " * 500]):
        with pytest.raises(DataError):
            generator(texts)
    for wrong in ({"max_new_tokens": 0}, {"batch_size": 0}, {"do_sample": False, "sampling": Sampling()}):
        with pytest.raises(ConfigError):
            generator("so", **wrong)


@pytest.mark.slow
def test_artifacts_are_loaded_on_the_engine(folder, tmp_path):
    (tmp_path / "texts").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "texts" / f"{split}.txt").write_text("\n".join(TEXTS * 4) + "\n")
    done = runs.finetune(
        folder, "language-modelling", tmp_path / "texts", tmp_path / "tuned", "--max-steps", 2, "--quiet"
    )
    assert done.code == 0, done.err
    generator = slimformer.load(tmp_path / "tuned", engine="native")
    assert isinstance(generator, NativeGenerator)
    assert generator("dull", max_new_tokens=3)[0]["generated_text"].startswith("dull")


def test_an_elastic_artifact_drafts_with_its_sizes(tmp_path):
    folder = runs.elastic_decoder(tmp_path / "elastic")
    generator = slimformer.load(folder, engine="native")
    alone = generator(TEXTS, max_new_tokens=20)
    assert generator(TEXTS, max_new_tokens=20, draft="S") == alone
    assert (
        generator(TEXTS, max_new_tokens=20, draft=Draft("M", length=3, shortlist=range(9, 20)), batch_size=2) == alone
    )
    assert generator(TEXTS, max_new_tokens=20, size="S") != alone
    assert generator(TEXTS, max_new_tokens=20, size="M", draft="S") == generator(TEXTS, max_new_tokens=20, size="M")
    with pytest.raises(SizeError, match="there is no size `XXL`"):
        generator(TEXTS, draft="XXL")
    code = f"""
import sys, slimformer
slimformer.load({str(folder)!r}, engine="native")("dull", draft="S", max_new_tokens=4)
assert not {{"torch", "transformers"}} & set(sys.modules), "imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
