"""`slimformer verify`: sound artifacts pass, and no byte can change unnoticed."""

from __future__ import annotations

import random
import shutil

from tests import runs


def test_a_sound_artifact(artifact):
    done = runs.run("verify", artifact)
    assert (done.code, done.err) == (0, "")
    assert "files unchanged, outputs as recorded" in done.out
    report = runs.run("verify", artifact, "--json").json
    assert report["artifact"] == str(artifact)
    assert report["files"] == len(list(artifact.iterdir())) - 1
    assert report["bytes"] == sum(path.stat().st_size for path in artifact.iterdir() if path.name != "slimformer.json")
    assert report["max_difference"] == 0


def test_a_changed_byte_anywhere(artifact, tmp_path):
    """First, last and a random byte of every file."""
    copy = shutil.copytree(artifact, tmp_path / "copy")
    rng = random.Random(0)
    for path in sorted(copy.iterdir()):
        content = path.read_bytes()
        for place in (0, len(content) - 1, rng.randrange(len(content))):
            changed = bytearray(content)
            changed[place] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            runs.run("verify", copy).refused(path.name)
        path.write_bytes(content)
    assert runs.run("verify", copy).code == 0


def test_files_too_few_and_too_many(artifact, tmp_path):
    copy = shutil.copytree(artifact, tmp_path / "copy")
    (copy / "notes.txt").write_text("mine")
    runs.run("verify", copy).refused("holds `notes.txt`")
    (copy / "notes.txt").unlink()
    (copy / "tokenizer.json").unlink()
    runs.run("verify", copy).refused("lacks `tokenizer.json`")


def test_what_is_no_artifact(base, tmp_path):
    runs.run("verify", base).refused("has no slimformer.json, so it is no artifact")
    runs.run("verify", tmp_path / "nowhere").refused("no folder at")
    runs.run("verify").refused("requires an argument", code=2)
