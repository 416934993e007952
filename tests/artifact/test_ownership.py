"""What may be removed or replaced: only what is known to be ours, whatever its name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from slimformer.artifact import save
from slimformer.artifact.ownership import MARK, TEXT, check_replaceable, is_own
from slimformer.artifact.staging import check_place, check_target, write_file
from slimformer.errors import ArtifactError, PathError
from tests.artifact.conftest import STEP, tiny_bert

if TYPE_CHECKING:
    from pathlib import Path

MINE = {
    ".gitignore": b"my rules",
    ".gitattributes": b"*.txt text eol=crlf\n",
    ".directory": b"mine",
    "desktop.ini": b"mine",
    ".DS_Store": b"mine",
    "Thumbs.db": b"mine",
    "._thesis.txt": b"my whole thesis",
    "1_Pooling/._x": b"mine",
    "__MACOSX/thesis.txt": b"mine",
    "__MACOSX/data/train.tsv": b"text\tlabel\n",
    ".git/HEAD": b"ref: refs/heads/main\n",
    ".cache/mine.txt": b"mine",
    ".cache/.gitignore": b"mine",
    ".cache/huggingface/hub/models--mine/model.safetensors": b"weights",
    ".cache/huggingface/download/notes.txt": b"mine",
    ".cache/huggingface/download/config.json.lock": b"not empty",
}
MADE_AGAIN = {
    ".DS_Store": b"\x00\x00\x00\x01Bud1\x00\x00",
    "Thumbs.db": b"\xd0\xcf\x11\xe0\xa1\xb1",
    "._config.json": b"\x00\x05\x16\x07\x00\x02\x00\x00",
    "__MACOSX/._config.json": b"\x00\x05\x16\x07\x00\x02\x00\x00",
    ".gitattributes": b"*.7z filter=lfs diff=lfs merge=lfs -text\n*.arrow filter=lfs diff=lfs merge=lfs -text\n",
    ".cache/.gitignore": b"*\n",
    ".cache/huggingface/.gitignore": b"*",
    ".cache/huggingface/CACHEDIR.TAG": b"Signature: 8a477f597d28d172789f06886806bc55\n",
    ".cache/huggingface/download/config.json.lock": b"",
    ".cache/huggingface/download/config.json.metadata": b"0" * 40 + b"\n" + b"1" * 40 + b"\n1731840000.5\n",
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "out", tiny_bert(), step=STEP)
    return tmp_path / "out"


def test_what_somebody_put_among_the_litter_is_not_replaced(saved: Path) -> None:
    for name, content in MINE.items():
        path = saved / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="is not replaced"):
            check_target(saved, overwrite=True)
        assert path.read_bytes() == content
        path.unlink()
        while path.parent != saved:
            path = path.parent
            path.rmdir()
    check_replaceable(saved)


def test_what_a_system_makes_again_may_go(saved: Path) -> None:
    for name, content in MADE_AGAIN.items():
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        (saved / name).write_bytes(content)
    check_replaceable(saved)
    for name in MADE_AGAIN:  # such a name does not make a link or a pipe ours
        (saved / name).rename(saved.parent / "aside")
        for make in (lambda path: path.symlink_to(saved.parent / "aside"), os.mkfifo):
            make(saved / name)
            with pytest.raises(ArtifactError, match="is not replaced"):
                check_replaceable(saved)
            (saved / name).unlink()
        (saved.parent / "aside").rename(saved / name)
    check_replaceable(saved)


@pytest.mark.parametrize("name", ["slimformer.json", "README.md", "model.safetensors"])
def test_a_saved_file_that_is_a_link_now_is_somebodys(name: str, saved: Path) -> None:
    (saved / name).rename(saved.parent / "mine")
    (saved / name).symlink_to(saved.parent / "mine")
    with pytest.raises(ArtifactError, match=rf"`{name}` is a link"):
        check_target(saved, overwrite=True)


@pytest.mark.parametrize("text", ["", TEXT[:10], TEXT])
def test_a_mark_may_be_cut_short(text: str, tmp_path: Path) -> None:
    (tmp_path / MARK).write_text(text)
    (tmp_path / "stage").mkdir()
    assert is_own(tmp_path)


@pytest.mark.parametrize("text", ["mine", f"{TEXT}\n", "x" * 10_000])
def test_a_file_of_the_marks_name_is_no_mark(text: str, tmp_path: Path) -> None:
    (tmp_path / MARK).write_text(text)
    assert not is_own(tmp_path)


def test_links_that_lead_nowhere_are_no_places(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for place, error, words in (
        ("out", ArtifactError, "`.*out` is a link that leads nowhere; remove it"),
        ("out/result", ArtifactError, "cannot write `.*result`: .*; nothing was written"),
        ("loop", PathError, "cannot be a path: too many levels of symbolic links"),
        ("a\udcffb", PathError, "is not UTF-8"),
    ):
        for overwrite in (False, True):
            with pytest.raises(error, match=words):
                check_place(tmp_path / place, overwrite)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "loop"}


def test_a_draft_takes_no_name_that_is_somebodys(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    (tmp_path / "settings.json.tmp").symlink_to("letter.txt")
    write_file(tmp_path / "settings.json", b"{}")
    assert (tmp_path / "letter.txt").read_text() == "dear"
    assert {path.name for path in tmp_path.iterdir()} == {"letter.txt", "settings.json", "settings.json.tmp"}
