"""What is left of paths in an artifact that others see."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimformer import artifact
from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.publishing import public_command, public_files, public_text

DONE = Path(__file__).parents[1] / "artifacts"


@pytest.mark.parametrize(
    ("typed", "seen"),
    [
        ("/home/ada/data/reviews", "…/reviews"),
        ("/home/ada/my data/", "…/my data"),
        ("~/reviews", "…/reviews"),
        ("~ada/reviews", "…/reviews"),
        ("~ada", "…/"),
        ("../reviews", "…/reviews"),
        ("a/../../ada/reviews", "…/reviews"),
        (r"C:\Users\ada\reviews", "…/reviews"),
        (r"\\server\ada\reviews", "…/reviews"),
        ("file:///home/ada/reviews", "…/reviews"),
        ("news=/home/ada/news,web=~/web", "news=…/news,web=…/web"),
        ("news=/home/ada lovelace/news,web=~/web", "news=…/news,web=…/web"),
        ("corpus:/home/ada/news", "corpus:…/news"),
    ],
)
def test_a_path_keeps_its_last_part(typed: str, seen: str) -> None:
    assert public_text(typed) == seen
    assert public_text(seen) == seen


@pytest.mark.parametrize(
    "text",
    ["reviews", "data/reviews", "./reviews", "minilm", "owner/name@main", "relations:1,hidden:0.5", "/", "~", "1/2",
     "nyu-mll/glue:sst2", "https://example.org/a", "a.b..c", "-1", ""],
)  # fmt: skip
def test_what_is_no_path_outside_stays(text: str) -> None:
    assert public_text(text) == text


def test_a_command_keeps_its_flags_and_names() -> None:
    typed = "slimformer finetune --model minilm --data '/home/ada/my data' --out=/home/ada/out --lr 1e-3"
    assert public_command(typed) == "slimformer finetune --model minilm --data '…/my data' '--out=…/out' --lr 1e-3"
    assert public_command("slimformer finetune 'no end") is None


@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=2, max_size=8), min_size=3, max_size=6))
def test_no_folder_of_an_absolute_path_is_left(parts: list[str]) -> None:
    seen = public_text("/" + "/".join(f"{part}-secret" for part in parts[:-1]) + "/last")
    assert "secret" not in seen


@pytest.mark.parametrize("name", sorted(path.name for path in DONE.iterdir() if (path / MANIFEST).is_file()))
def test_every_artifact_there_ever_was_stays_sound(name: str, tmp_path: Path) -> None:
    """What others see has sums, a probe and weights that agree, whatever version wrote it and however it is stored."""
    place = tmp_path / name
    for file, content in public_files(DONE / name).items():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            (place / file).write_bytes(content)
        else:
            shutil.copyfile(content, place / file)
    base = DONE / ("base-odd" if name == "mask-odd" else "base")
    masked = artifact.read_manifest(place).model.storage == "mask"
    artifact.verify(place, base=base if masked else None)
    before, after = artifact.read_manifest(DONE / name), artifact.read_manifest(place)
    assert (before.task, before.metrics, len(before.steps)) == (after.task, after.metrics, len(after.steps))
