"""The fingerprint tells weights apart by content and by nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from slimformer.artifact import fingerprint
from slimformer.errors import ArtifactError
from tests.artifact.conftest import tiny_bert
from tests.zoo import FAMILIES, build

if TYPE_CHECKING:
    from pathlib import Path


def test_is_a_sha256() -> None:
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(tiny_bert()))


def test_model_state_dict_and_folder_agree(tmp_path: Path) -> None:
    model = tiny_bert()
    model.save_pretrained(tmp_path)
    assert fingerprint(model) == fingerprint(model.state_dict()) == fingerprint(tmp_path) == fingerprint(str(tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_model_and_its_folder_agree(family: str, tmp_path: Path) -> None:
    model = build(family)
    model.save_pretrained(tmp_path)
    assert fingerprint(model) == fingerprint(tmp_path) == fingerprint(type(model).from_pretrained(tmp_path))


@pytest.mark.parametrize("head", [hf.BertForMaskedLM, hf.BertLMHeadModel])
def test_tied_weights_count_once(head: type, tmp_path: Path) -> None:
    model = tiny_bert(head)
    model.save_pretrained(tmp_path)
    assert fingerprint(model) == fingerprint(tmp_path)


def test_does_not_depend_on_shards(tmp_path: Path) -> None:
    model = tiny_bert()
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="4KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "many")


def test_does_not_depend_on_order_device_layout_or_gradients() -> None:
    state = tiny_bert().state_dict()
    backwards = {name: state[name].clone().requires_grad_() for name in reversed(state)}
    strided = {name: value.t().contiguous().t() if value.dim() == 2 else value for name, value in state.items()}
    assert fingerprint(state) == fingerprint(backwards) == fingerprint(strided)


@pytest.mark.slow
def test_does_not_depend_on_the_process(tmp_path: Path) -> None:
    tiny_bert().save_pretrained(tmp_path)
    code = f"from slimformer.artifact import fingerprint; print(fingerprint({str(tmp_path)!r}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == fingerprint(tmp_path)


def test_known_value_stays() -> None:
    state = {"b": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a": torch.tensor(1.5, dtype=torch.bfloat16)}
    assert fingerprint(state) == "35e0d31c6819f9c116e18e390d4b8f6fcd61a762edde863c670c5f9bf9295350"


def test_any_change_of_any_weight_changes_it() -> None:
    state = tiny_bert().state_dict()
    seen = {fingerprint(state)}
    for name, value in state.items():
        changed = value.clone()
        changed.view(-1)[-1] = torch.nextafter(changed.view(-1)[-1], torch.tensor(9.0))
        seen.add(fingerprint({**state, name: changed}))
    assert len(seen) == len(state) + 1


def test_names_shapes_and_types_count() -> None:
    zeros = torch.zeros(2, 6)
    variants = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.reshape(3, 4)},
        {"a": zeros.half()},
        {"a": zeros.bfloat16()},
        {"a": zeros.to(torch.uint8)},
        {"a": -zeros},
        {"a": zeros, "b": zeros},
        {},
    ]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)


def test_positions_do_not_count() -> None:
    state = tiny_bert().state_dict()
    assert fingerprint({**state, "position_ids": torch.arange(5)}) == fingerprint(state)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    torch.save(tiny_bert().state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match=r"a pickle, `pytorch_model\.bin`, which may run code and is never read"):
        fingerprint(tmp_path)


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has no weights"):
        fingerprint(tmp_path)
    with pytest.raises(ArtifactError, match="no folder at"):
        fingerprint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "index", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 3}}']
)
def test_broken_index(tmp_path: Path, index: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ArtifactError, match=r"index\.json"):
        fingerprint(tmp_path)


def test_broken_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10" + b"\0" * 7 + b"{" * 16)
    with pytest.raises(ArtifactError, match="is not a safetensors file"):
        fingerprint(tmp_path)
