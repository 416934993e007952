"""Every change to an artifact is found, wherever it is."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from slimformer.artifact import load, save, verify
from slimformer.artifact.checks import sum_file
from slimformer.errors import ArtifactError
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.forging import edit, resum, sign
from tests.artifact.test_ownership import MADE_AGAIN

if TYPE_CHECKING:
    from pathlib import Path

FILES = (
    "README.md",
    "config.json",
    "model.safetensors",
    "probe.json",
    "reading.json",
    "slimformer.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def test_reports_what_it_checked(saved: Path) -> None:
    report = verify(saved)
    assert report.files == tuple(name for name in FILES if name != "slimformer.json")
    assert report.outputs == ("last_hidden_state", "logits")
    assert report.max_difference < 1e-6
    assert report.bytes == sum((saved / name).stat().st_size for name in report.files)


def test_the_artifact_holds_these_files_only(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == sorted(FILES)


LITTER = (
    ".DS_Store",
    "._model.safetensors",
    ".gitattributes",
    "Thumbs.db",
    "__MACOSX/._config.json",
    ".cache/huggingface/download/config.json.metadata",
    ".cache/.gitignore",
)


@pytest.mark.parametrize("name", [*LITTER, ".git/config", ".cache/notes.txt"])
def test_what_systems_leave_in_a_folder_changes_nothing(artifact: Path, name: str) -> None:
    (artifact / name).parent.mkdir(parents=True, exist_ok=True)
    (artifact / name).write_bytes(b"\0\1")
    assert verify(artifact).files == tuple(each for each in FILES if each != "slimformer.json")
    load(artifact)


def test_what_systems_leave_goes_with_the_folder(artifact: Path) -> None:
    for name, content in MADE_AGAIN.items():
        (artifact / name).parent.mkdir(parents=True, exist_ok=True)
        (artifact / name).write_bytes(content)
    save(artifact, tiny_bert(seed=1), processor=tiny_tokenizer(), step=STEP, overwrite=True)
    assert not any((artifact / name).exists() for name in MADE_AGAIN)


@pytest.mark.parametrize("name", [".git/config", ".cache/notes.txt", "notes.txt", ".cache/huggingfaces/x"])
def test_a_history_and_what_is_of_the_user_stays(artifact: Path, name: str) -> None:
    (artifact / name).parent.mkdir(parents=True, exist_ok=True)
    (artifact / name).write_bytes(b"mine")
    with pytest.raises(ArtifactError, match="is not replaced, as not all of it is known to be slimformer's"):
        save(artifact, tiny_bert(seed=1), processor=tiny_tokenizer(), step=STEP, overwrite=True)
    assert (artifact / name).read_bytes() == b"mine"


@pytest.mark.parametrize("name", FILES)
def test_finds_every_flipped_bit(artifact: Path, name: str) -> None:
    path, whole = artifact / name, (artifact / name).read_bytes()
    dice = random.Random(name)
    for _ in range(20):
        data = bytearray(whole)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=name):
            verify(artifact)
    path.write_bytes(whole)
    verify(artifact)


@pytest.mark.parametrize("name", FILES)
def test_finds_every_cut(artifact: Path, name: str) -> None:
    path, whole = artifact / name, (artifact / name).read_bytes()
    dice = random.Random(name)
    for length in [0, len(whole) - 1, *(dice.randrange(len(whole)) for _ in range(12))]:
        path.write_bytes(whole[:length])
        with pytest.raises(ArtifactError, match=name):
            verify(artifact)


@pytest.mark.slow
def test_finds_every_byte_of_the_manifest(artifact: Path) -> None:
    path, whole = artifact / "slimformer.json", (artifact / "slimformer.json").read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ArtifactError, match=r"slimformer\.json|artifact"):
            verify(artifact)


@pytest.mark.parametrize("change", [lambda d: d + b"\n", lambda d: d.replace(b": ", b":  ", 1), lambda d: b" " + d])
def test_finds_white_space_in_the_manifest(artifact: Path, change) -> None:
    path = artifact / "slimformer.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ArtifactError, match="was changed after it was written"):
        verify(artifact)


@pytest.mark.parametrize("name", FILES)
def test_finds_a_missing_file(artifact: Path, name: str) -> None:
    (artifact / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        verify(artifact)


@pytest.mark.parametrize("name", ["notes.txt", "added_tokens.json", "deep/notes.txt", ".hidden.json", "model"])
def test_finds_an_extra_file(artifact: Path, name: str) -> None:
    (artifact / name).parent.mkdir(exist_ok=True)
    (artifact / name).write_text("{}")
    with pytest.raises(ArtifactError, match=name):
        verify(artifact)


def test_finds_an_empty_folder(artifact: Path) -> None:
    (artifact / "empty").mkdir()
    with pytest.raises(ArtifactError, match="empty"):
        verify(artifact)


def test_finds_swapped_files(artifact: Path) -> None:
    one, other = artifact / "tokenizer.json", artifact / "tokenizer_config.json"
    one.rename(artifact / "x.json")
    other.rename(one)
    (artifact / "x.json").rename(other)
    with pytest.raises(ArtifactError, match=r"tokenizer"):
        verify(artifact)


def test_finds_the_weights_of_a_sibling_by_their_sum(artifact: Path, tmp_path: Path) -> None:
    save(tmp_path / "other", tiny_bert(seed=1), processor=tiny_tokenizer(), step=STEP)
    shutil.copy(tmp_path / "other" / "model.safetensors", artifact)
    with pytest.raises(ArtifactError, match=r"`model.safetensors` .* was changed"):
        verify(artifact)


def test_finds_the_weights_of_a_sibling_by_the_answers(artifact: Path, tmp_path: Path) -> None:
    save(tmp_path / "other", tiny_bert(seed=1), processor=tiny_tokenizer(), step=STEP)
    shutil.copy(tmp_path / "other" / "model.safetensors", artifact)
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"outputs recorded at saving: output `.*` differs by"):
        verify(artifact)


def test_finds_a_config_that_fits_the_shapes_but_computes_otherwise(artifact: Path) -> None:
    edit(artifact / "config.json", num_attention_heads=4)
    resum(artifact)
    with pytest.raises(ArtifactError, match="differs by"):
        verify(artifact)


def test_finds_weights_that_give_nan(artifact: Path) -> None:
    weights = load_file(artifact / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, artifact / "model.safetensors", metadata={"format": "pt"})
    resum(artifact)
    with pytest.raises(ArtifactError, match="nan"):
        verify(artifact)


def test_finds_nan_among_the_recorded_answers(artifact: Path) -> None:
    path = artifact / "probe.json"
    path.write_text(path.read_text().replace('"values":[', '"values":[NaN,', 2))
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"probe\.json"):
        verify(artifact)


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("README.md", "slimformer.json")])
@pytest.mark.slow
def test_damage_with_agreeing_sums_is_an_artifact_error_or_harmless(artifact: Path, name: str) -> None:
    path, whole, dice = artifact / name, (artifact / name).read_bytes(), random.Random(name)
    files = json.loads((artifact / "slimformer.json").read_bytes())["files"]
    for _ in range(25):
        # Headers and keys are where parsers stumble, so half the damage goes to the beginning.
        place = dice.randrange(min(400, len(whole)) if dice.random() < 0.5 else len(whole))
        piece = dice.choice([b"\0", b"-", b"9" * 20, b"null", b'"', b"[", b"{}", b"\xff"])
        path.write_bytes(dice.choice([whole[:place] + piece + whole[place + 1 :], whole[:place]]))
        sign(artifact, files={**files, name: sum_file(path).model_dump()})
        with contextlib.suppress(ArtifactError):
            assert verify(artifact).max_difference < 1e-3


def test_answers_below_a_zero_head_still_tell_models_apart(tmp_path: Path) -> None:
    models = [tiny_bert(seed=seed) for seed in (0, 1)]
    for number, model in enumerate(models):
        torch.nn.init.zeros_(model.classifier.weight)
        save(tmp_path / str(number), model, step=STEP)
    shutil.copy(tmp_path / "1" / "model.safetensors", tmp_path / "0")
    resum(tmp_path / "0")
    with pytest.raises(ArtifactError, match="last_hidden_state"):
        verify(tmp_path / "0")


def test_accepts_links_to_files_as_in_the_cache_of_the_hub(artifact: Path, tmp_path: Path) -> None:
    for path in list(artifact.iterdir()):
        path.rename(tmp_path / f"blob-{path.name}")
        path.symlink_to(tmp_path / f"blob-{path.name}")
    verify(artifact)


def test_is_deterministic(artifact: Path) -> None:
    assert verify(artifact) == verify(artifact)
