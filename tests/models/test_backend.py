"""Tokenizer files of a stranger: regular expressions that never match in time, replacements that fill the memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from slimformer.errors import CheckpointError, DataError
from slimformer.models import load_processor
from slimformer.tasks.encoding import TextEncoder
from tests import corpus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return corpus.model_folder(tmp_path / "base")


def rewrite(folder: Path, **parts: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **parts}))


def replacements(length: int, count: int) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * length}
    return {"type": "Sequence", "normalizers": [step] * count}


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_replacements_that_grow_a_text_are_refused(folder: Path, part: str) -> None:
    steps = replacements(100, 5)
    rewrite(folder, **{part: steps if part == "normalizer" else {"type": part, "decoders": steps["normalizers"]}})
    with pytest.raises(CheckpointError, match=rf"{part} in tokenizer.json .* makes up to 1e\+10 characters of one"):
        load_processor(folder)


def test_replacements_of_real_tokenizers_are_read(folder: Path) -> None:
    rewrite(folder, normalizer=replacements(3, 2))
    assert TextEncoder(load_processor(folder)).ids(["a film"], special_tokens=False)


def test_a_panic_of_the_tokenizer_is_an_error(folder: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    rewrite(folder, pre_tokenizer=split)
    encoder = TextEncoder(load_processor(folder))
    with pytest.raises(DataError, match=r"the tokenizer fails at one of the texts: .*retry-limit"):
        encoder.inputs(["x" * 40])


@pytest.mark.parametrize("template", ["single", "pair"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_template_with_a_token_it_does_not_define_is_refused(
    folder: Path, template: str, nested: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    processor = json.loads((folder / "tokenizer.json").read_bytes())["post_processor"]
    processor[template].append({"SpecialToken": {"id": "[NONE]", "type_id": 0}})
    rewrite(folder, post_processor={"type": "Sequence", "processors": [processor]} if nested else processor)
    with pytest.raises(CheckpointError, match=r"adds `\[NONE\]`, which is not among its special tokens"):
        load_processor(folder)
    assert capfd.readouterr().err == ""  # nothing of the engine's own


@pytest.mark.parametrize("template", ["single", "pair"])
def test_a_template_with_a_number_the_model_does_not_know_is_refused(folder: Path, template: str) -> None:
    processor = json.loads((folder / "tokenizer.json").read_bytes())["post_processor"]
    processor["special_tokens"]["[FAR]"] = {"id": "[FAR]", "ids": [10**6], "tokens": ["[FAR]"]}
    processor[template].append({"SpecialToken": {"id": "[FAR]", "type_id": 0}})
    rewrite(folder, post_processor=processor)
    with pytest.raises(CheckpointError, match="has tokens up to number 1,000,000"):
        load_processor(folder)


def test_two_pieces_of_one_number_are_refused(folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_bytes())["model"]
    first, second = sorted(model["vocab"])[-2:]
    model["vocab"][second] = model["vocab"][first]
    rewrite(folder, model=model)
    with pytest.raises(CheckpointError, match=rf"`{first}` and `{second}` are both piece \d+ of the tokenizer"):
        load_processor(folder)


def test_a_token_type_the_model_does_not_know_is_refused(folder: Path) -> None:
    processor = json.loads((folder / "tokenizer.json").read_bytes())["post_processor"]
    next(piece["Sequence"] for piece in processor["single"] if "Sequence" in piece)["type_id"] = 9
    rewrite(folder, post_processor=processor)
    assert load_processor(folder)("a film")["input_ids"]  # types are not among its inputs
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="gives a text the token type 9, and the model knows 2 from 0"):
        load_processor(folder)
