"""Full disks and killed processes leave nothing half-written."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from slimformer.artifact import save, verify
from slimformer.artifact.staging import _exchange, check_target, remove_leftovers, staging
from slimformer.errors import ArtifactError
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1.5 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_disk_that_is_too_small_is_found_beforehand(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 900_000)
    with pytest.raises(
        ArtifactError,
        match=r"no space to write `.*/out` \(no space left on device\): about 1,0\d\d,\d{3} bytes.*, 6\d\d,\d{3} are",
    ):
        save(small_disk / "out", tiny_bert(), step=STEP)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.slow
def test_disk_that_fills_up_while_writing(small_disk: Path) -> None:
    large = tiny_tokenizer()
    large.add_tokens(["x" * 3_000_000])
    with pytest.raises(ArtifactError, match=r"no space to write `.*/out` .* nothing was written"):
        save(small_disk / "out", tiny_bert(), processor=large, step=STEP)
    assert not list(small_disk.iterdir())
    save(small_disk / "out", tiny_bert(), processor=tiny_tokenizer(), step=STEP)
    with pytest.raises(ArtifactError, match="no space"):
        save(small_disk / "out", tiny_bert(), processor=large, step=STEP, overwrite=True)
    verify(small_disk / "out")
    assert [path.name for path in small_disk.iterdir()] == ["out"]


LIMITED = """
import resource, signal, sys
from slimformer.artifact import save
from slimformer.errors import ArtifactError
from tests.artifact.conftest import STEP, tiny_bert
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 500, 5_000, 20_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save(sys.argv[1] + "/out", tiny_bert(), step=STEP)
    except ArtifactError as error:
        assert "(file too large)" in str(error), error
    else:
        sys.exit(f"saved in spite of the limit of {limit}")
"""


@pytest.mark.slow
def test_limit_on_the_size_of_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], check=True, cwd=ROOT)
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_written() -> None:
    with pytest.raises(ArtifactError, match="cannot write `/proc/nowhere/out`"):
        save("/proc/nowhere/out", tiny_bert(), step=STEP)


# The process kills itself at the n-th time it touches a file or folder of the target's parent, for every n.
KILLED = """
import os, shutil, signal, sys
import torch
torch.set_num_threads(1)
from slimformer.artifact import fingerprint, save, verify
from tests.artifact.conftest import STEP, tiny_bert
former, latter = tiny_bert(seed=0), tiny_bert(seed=1)
whole = {fingerprint(former), fingerprint(latter)}
events = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "ctypes.dlsym"}

def attempt(target, overwrite, last):
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    seen, parent = 0, os.path.dirname(target)
    def watch(event, args):
        nonlocal seen
        if event in events and (event == "ctypes.dlsym" or str(args[0]).startswith(parent)):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    save(target, latter, step=STEP, overwrite=overwrite)
    os._exit(0)

def torment(target, overwrite):
    kills = 0
    while attempt(target, overwrite, kills + 1):
        kills += 1
        assert os.path.exists(target) or not overwrite
        if os.path.exists(target):
            verify(target)
            assert fingerprint(target) in whole
            if not overwrite:
                shutil.rmtree(target)
    save(target, latter, step=STEP, overwrite=True)
    assert os.listdir(os.path.dirname(target)) == ["out"], os.listdir(os.path.dirname(target))
    return kills

for mode in ("new", "overwrite"):
    target = os.path.join(os.path.realpath(sys.argv[1]), mode, "out")
    os.mkdir(os.path.dirname(target))
    if mode == "overwrite":
        save(target, former, step=STEP)
    print("kills", torment(target, mode == "overwrite"))
"""


@pytest.mark.slow
def test_killed_at_any_point_the_target_is_whole_or_not_there(tmp_path: Path) -> None:
    script = [sys.executable, "-c", KILLED, str(tmp_path)]
    run = subprocess.run(script, check=True, cwd=ROOT, capture_output=True, text=True)
    kills = [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("kills")]
    assert min(kills) > 20
    assert len(kills) == 2


def test_two_writers_do_not_remove_each_others_work(tmp_path: Path) -> None:
    with staging(tmp_path / "out", needed=0) as one:
        (one / "slimformer.json").write_text("1")
        with staging(tmp_path / "out", needed=0) as other:
            assert one.exists()
            (other / "slimformer.json").write_text("2")
        assert (tmp_path / "out" / "slimformer.json").read_text() == "2"
        (tmp_path / "out" / "slimformer.json").unlink()
    assert (tmp_path / "out" / "slimformer.json").read_text() == "1"


def test_target_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    def write() -> None:
        with staging(tmp_path / "out", needed=0) as stage:
            (stage / "a.txt").write_text("new")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "a.txt").write_text("old")

    with pytest.raises(ArtifactError, match="cannot write"):
        write()
    assert (tmp_path / "out" / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["plain", "with [brackets] * and ?"])
def test_leftovers_of_other_targets_are_not_touched(name: str, tmp_path: Path) -> None:
    (tmp_path / f".{name}.tmp-01234567").mkdir()
    (tmp_path / f".{name}2.tmp-01234567").mkdir()
    with staging(tmp_path / name, needed=0) as stage:
        (stage / "a.txt").write_text("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f".{name}2.tmp-01234567"])


@pytest.mark.parametrize("late", [False, True])
def test_a_folder_that_is_being_made_is_no_leftover(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks for leftovers the moment one has been made and is not held yet."""
    opened, looked = os.open, []

    def look() -> None:
        looked.append(True)
        remove_leftovers(tmp_path / "out")

    def open_while_another_looks(path: Path, flags: int, *more: int) -> int:
        first = not looked and flags & os.O_DIRECTORY != 0
        if first and not late:
            look()
        handle = opened(path, flags, *more)
        if first and late:
            look()
        return handle

    monkeypatch.setattr(os, "open", open_while_another_looks)
    with staging(tmp_path / "out", needed=0) as stage:
        (stage / "a.txt").write_text("x")
    assert looked
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_no_locks_are_kept_artifacts_are_written_and_leftovers_stay(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with staging(tmp_path / "out", needed=0) as stage:
        (stage / "a.txt").write_text("x")
        remove_leftovers(tmp_path / "out")  # nobody can tell who made them
        assert (stage / "a.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_replaced_is_hashed_once(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    digest = hashlib.file_digest

    def watched(file: BinaryIO, name: str) -> Any:
        hashed.append(Path(file.name))
        return digest(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "file_digest", watched)
    check_target(artifact, overwrite=True)
    save(artifact, tiny_bert(seed=1), step=STEP, overwrite=True)
    former = [path.name for path in hashed if path.parent == artifact]
    assert "model.safetensors" in former
    assert sorted(former) == sorted(set(former))


def test_what_is_changed_after_it_was_hashed_is_not_replaced(artifact: Path) -> None:
    check_target(artifact, overwrite=True)
    content = bytearray((artifact / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (artifact / "model.safetensors").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"`model\.safetensors` was changed"):
        check_target(artifact, overwrite=True)


def test_interruption_by_the_user_cleans_up(tmp_path: Path) -> None:
    def write() -> None:
        with staging(tmp_path / "out", needed=0) as stage:
            (stage / "a.txt").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges names")
def test_exchange(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    assert _exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "name").read_text() == "other"
    assert not _exchange(tmp_path / "one", tmp_path / "gone")


def test_without_exchange_the_former_one_is_moved_aside(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimformer.artifact.staging.sys.platform", "darwin")
    save(artifact, tiny_bert(seed=1), step=STEP, overwrite=True)
    verify(artifact)
    assert [path.name for path in artifact.parent.iterdir()] == [artifact.name]
