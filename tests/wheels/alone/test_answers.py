"""What slimformer-runtime answers where nothing but NumPy, tokenizers and pytest is installed.

These tests import neither torch nor anything else of this folder's parents, so that they run beside an installed wheel:

    python -m pytest --noconftest -p no:cacheprovider tests/wheels/alone

The models were saved by earlier versions, and what they must answer was recorded with torch (`tests/artifacts`). The
sums of the bits were recorded here, and must be those of every machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import slimformer
from slimformer.distribution import is_whole
from slimformer.errors import SlimformerError
from slimformer.runtime.checkpoint import LAYOUTS, rule_of
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import VARIABLE, is_built, kernels
from slimformer.sizes import Draft, name_sizes

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
BITS = Path(__file__).parent / "bits.json"
CLASSIFIERS = ["classifier", "rounded", "sharded"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def recorded(name):
    """The texts an artifact was asked, and what its model gave in torch."""
    record = json.loads((ARTIFACTS / "answers.json").read_text())[name]
    return record["request"]["text"], {output: np.array(values) for output, values in record["outputs"].items()}


def load(name):
    return slimformer.load(ARTIFACTS / name, engine="native")


def sets():
    return list(kernels().instruction_sets()) if is_built() else []


def tokens_of(model, texts):
    return [each.ids for each in model.tokenizer.encode_batch(texts)]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_are_those_of_torch(name):
    texts, outputs = recorded(name)
    model = load(name)
    names = model.encoder.config["id2label"]
    shares = np.exp(outputs["logits"]) / np.exp(outputs["logits"]).sum(-1, keepdims=True)
    for answer, row in zip(model.predict(texts, top_k=None), shares, strict=True):
        given = {each["label"]: each["score"] for each in answer}
        np.testing.assert_allclose([given[names[str(index)]] for index in range(len(row))], row, **TOLERANCE)
    assert model.predict(texts[0]) == [max(model.predict(texts[0], top_k=None), key=lambda each: each["score"])]


def test_hidden_states_and_vectors_are_those_of_torch():
    texts, outputs = recorded("sentence-encoder")
    model = load("sentence-encoder")
    rows, first = model.encoder.run(tokens_of(model, texts)), 0
    for text, expected in zip(tokens_of(model, texts), outputs["last_hidden_state"], strict=True):
        np.testing.assert_allclose(rows[first : first + len(text)], expected[: len(text)], **TOLERANCE)
        first += len(text)
    vectors = model.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert (model.encode(texts[0], normalize_embeddings=True) == vectors[0]).all()


def test_logits_and_text_of_a_decoder_are_those_of_torch():
    texts, outputs = recorded("decoder")
    model = load("decoder")
    decoder, expected = model.decoder, outputs["logits"]
    for text, row in zip(tokens_of(model, texts), expected, strict=True):
        logits = decoder.run([text], [decoder.cache()], all_logits=True)
        # What a text is padded with stands on either side, and its logits are nothing.
        padded = [row[: len(text)], row[len(row) - len(text) :]]
        assert any(np.allclose(logits, part, **TOLERANCE) for part in padded)
    prompt = tokens_of(model, texts[:1])[0]
    greedy = list(prompt)
    for _ in range(4):
        greedy.append(int(np.argmax(decoder.run([greedy], [decoder.cache()])[0])))
    assert decoder.generate([prompt], max_new_tokens=4) == [greedy[len(prompt) :]]
    (answer,) = model(texts[0], max_new_tokens=4, do_sample=False)
    assert answer["generated_text"].startswith(texts[0])


def test_a_smaller_size_drafts_and_the_text_stays_the_same():
    decoder = NativeDecoder(ARTIFACTS / "decoder", sizes=name_sizes((0.5, 1)))
    prompts = [[1, 5, 6], [1, 7]]
    drafted = decoder.write(prompts, max_new_tokens=8, draft=Draft("S", length=3))
    assert drafted.tokens == decoder.generate(prompts, max_new_tokens=8)
    assert drafted.statistics.drafted > 0


def packed(codes, layout):
    """Codes in bytes, written out slowly: a unit holds digits of a base, the first one lowest."""
    rows = []
    for row in codes:
        digits = [(int(code) - layout.lowest) // layout.stride for code in row]
        digits += [layout.filling] * (-len(digits) % layout.digits)
        units = [digits[first : first + layout.digits] for first in range(0, len(digits), layout.digits)]
        numbers = [sum(digit * layout.base**place for place, digit in enumerate(unit)) for unit in units]
        rows.append(b"".join(number.to_bytes(layout.bytes, "little") for number in numbers))
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(codes), -1)


def products():
    """Products of the kernels over every layout, instruction set and number of threads, with what they must be."""
    draw = np.random.default_rng(5)
    for layout in LAYOUTS.values():
        rows, columns = 37, 80
        codes = draw.choice(np.array(layout.allowed), (rows, columns))
        scales = draw.random((rows, 1), np.float32) + 0.5
        x = draw.standard_normal((3, columns), np.float32)
        steps = np.float32(127) / np.abs(x).max(1, keepdims=True)
        rounded = np.rint(x * steps)
        expected = (rounded @ codes.T) * scales.T / steps
        matrix = kernels().Matrix(rows, columns, rule_of(layout), columns)
        matrix.set_codes(0, packed(codes, layout), scales, columns, rule_of(layout), None)
        yield layout.name, matrix, x, expected


def test_every_layout_is_multiplied_as_integers_are():
    for name, matrix, x, expected in products():
        answers = [matrix.multiply(x, "none", threads, chosen) for chosen in sets() for threads in (1, 2)]
        np.testing.assert_allclose(answers[0], expected, rtol=1e-5, atol=1e-5, err_msg=name)
        assert all((each == answers[0]).all() for each in answers), name


def sum_of(*arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(each, np.float32).tobytes() for each in arrays)).hexdigest()


def bits():
    """Sums over the bits that models answer with."""
    sums = {}
    for name in [*CLASSIFIERS, "sentence-encoder"]:
        encoder = NativeEncoder(ARTIFACTS / name)
        sums[name] = sum_of(encoder.run([[2, 7, 8, 9, 3], [2, 3], [2, *range(5, 20), 3]]))
    encoder = NativeEncoder(ARTIFACTS / "image-classifier")
    side = encoder.config["image_size"]
    pixels = np.arange(2 * 3 * side * side, dtype=np.float32).reshape(2, 3, side, side) % 255 / 255
    sums["image-classifier"] = sum_of(encoder.run_images(pixels))
    decoder = NativeDecoder(ARTIFACTS / "decoder")
    sums["decoder"] = sum_of(decoder.run([[1, 5, 6], [1, 9]], [decoder.cache(), decoder.cache()]))
    return sums


@pytest.mark.parametrize("name", sets())
def test_bits_are_those_of_every_machine(name, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    assert bits() == json.loads(BITS.read_text())


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "slimformer.json", "tokenizer.json"])
def test_a_changed_byte_is_refused(file, tmp_path):
    folder = shutil.copytree(ARTIFACTS / "classifier", tmp_path / "model")
    content = bytearray((folder / file).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / file).write_bytes(content)
    with pytest.raises(SlimformerError, match=r"changed|not valid JSON|UTF-8|copy"):
        slimformer.load(folder, engine="native")


@pytest.mark.parametrize("name", ["mask", "mask-structured", "mask-regression"])
def test_a_mask_on_its_base_answers_as_in_torch(name):
    texts, outputs = recorded(name)
    model = load(name)
    rows = model.encoder.run(tokens_of(model, texts))
    np.testing.assert_allclose(rows, outputs["logits"], **TOLERANCE)


@pytest.mark.parametrize("size", ["S", "M", "XL", None])
def test_every_size_of_an_elastic_encoder_answers_as_in_torch(size):
    texts, outputs = recorded("elastic")
    model = slimformer.load(ARTIFACTS / "elastic", engine="native", size=size)
    rows = model.encoder.run(tokens_of(model, texts))
    np.testing.assert_allclose(rows, outputs["logits" if size is None else f"logits@{size}"], **TOLERANCE)


def test_blocks_of_different_widths_answer_as_in_torch():
    texts, outputs = recorded("per-block")
    model = load("per-block")
    np.testing.assert_allclose(model.encoder.run(tokens_of(model, texts)), outputs["logits"], **TOLERANCE)


def test_entities_and_spans_are_read_off():
    words = " ".join(json.loads((ARTIFACTS / "answers.json").read_text())["mask-tagging"]["request"]["text"][0])
    entities = load("mask-tagging").predict(words, ignore_labels=[])
    assert [words[each["start"] : each["end"]] for each in entities] == words.split()
    context = "the film was good"
    answer = load("mask-question-answering").predict(question="the end", context=context)
    assert answer["answer"] == context[answer["start"] : answer["end"]] != ""


def test_what_the_engine_does_not_read_is_refused_by_name():
    with pytest.raises(SlimformerError, match=r"has no head of `BertForMultipleChoice`.*torch answers"):
        load("mask-multiple-choice")
    with pytest.raises(SlimformerError, match="does not run `gpt2`"):
        load("packed-decoder")
    with pytest.raises(SlimformerError, match="no folder at `nowhere/at/all`"):
        slimformer.load("nowhere/at/all", engine="native")


def test_nothing_else_is_imported():
    """In a process of its own: a test beside this one may have imported anything."""
    others = "{'torch', 'transformers', 'pydantic', 'safetensors', 'huggingface_hub'}"
    code = f"import sys, slimformer; slimformer.load({str(ARTIFACTS / 'classifier')!r}, engine='native')('a film')"
    code += f"\nprint(sorted(sys.modules.keys() & {others}))"
    emulator = shlex.split(os.environ.get("SLIMFORMER_EMULATOR", ""))
    done = subprocess.run([*emulator, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(is_whole(), reason="all of slimformer is here")
def test_what_only_all_of_slimformer_has_is_named():
    with pytest.raises(AttributeError, match=r"`slimformer.distill` is not in slimformer-runtime.*pip install slimf"):
        _ = slimformer.distill
    with pytest.raises(ModuleNotFoundError, match=r"`slimformer.artifact.loading` is not in slimformer-runtime"):
        slimformer.load(ARTIFACTS / "classifier")
    assert not hasattr(slimformer, "quantize")
