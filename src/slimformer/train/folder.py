"""The folder a run works in until it is done: nobody else works there, and nothing of anybody else's is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from slimformer.artifact.ownership import is_own, lies_at, lock, mark, remove, remove_mark
from slimformer.artifact.staging import FULL, system_code, write_file
from slimformer.errors import TrainingError, visible
from slimformer.files import JsonError, parse_json, read_limited
from slimformer.train import checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SETTINGS = "settings.json"
#: How the name of the folder ends in which a run keeps what it needs until it is done.
SUFFIX = ".training"
#: Under this name stands, beside the settings, the method whose run it is.
METHOD = "method"
#: Under this name the digest of what is learned from stands among the settings.
DIGEST = "data_digest"
#: Under this name the fingerprint of the weights that the run starts from stands there.
BASE = "base_fingerprint"
#: What is known by its content and not by its name.
CONTENT = {DIGEST: "the data", BASE: "the base"}
#: Settings of a run take less, even with thousands of files of a corpus.
LARGEST = 16 * 2**20
#: What every run writes; whatever else lies in its folder, and no method has named, belongs to somebody else.
OWN_FILES = re.compile(rf"{re.escape(SETTINGS)}|best(\.safetensors)?|{checkpoints.PREFIX}[0-9]+")

#: How drafts of files are called.
DRAFT = re.compile(r"\.(.+)\.tmp-[0-9a-f]{8}|(.+)\.tmp")


@dataclass(frozen=True)
class TrainingFolder:
    """Where checkpoints of an unfinished run lie.

    Args:
        path: The folder.
        files: Names of files that the method writes there beside checkpoints.
    """

    path: Path
    files: tuple[str, ...] = ()

    def check(self, settings: Mapping[str, Any], resume: bool) -> None:
        """Refuse, before any work, a folder that is not a run's, holds another run, or one nobody asked to go on with.

        Args:
            settings: The settings of the run; those that are not known yet are compared later.
            resume: Whether an unfinished run may be gone on with.
        """
        if not os.path.lexists(self.path):
            return
        self._check_own()
        path = self.path / SETTINGS
        if not path.exists():
            return
        if not resume:
            raise TrainingError(
                f"an unfinished run lies in `{self.path}`; add `--resume` to go on with it, or remove it"
            )
        stored = _read(path)
        current = parse_json(json.dumps(settings), halves=True)
        method = current.pop(METHOD, None)
        if stored.get(METHOD, method) != method:
            raise TrainingError(
                f"the run in `{self.path}` is one of `slimformer {stored[METHOD]}`, not of `slimformer {method}`; "
                "resume it with that command, or remove the folder to start anew"
            )
        for name in sorted(current.keys()):
            if name in CONTENT and stored.get(name, current[name]) != current[name]:
                raise TrainingError(
                    f"{CONTENT[name]} of the run in `{self.path}` was changed since it began; put it back as it was, "
                    "or remove the folder to start anew"
                )
            if name not in CONTENT and stored.get(name) != current[name]:
                raise TrainingError(
                    f"the run in `{self.path}` had `{name}` = `{stored.get(name)}`, not `{current.get(name)}`; "
                    "resume with the same settings, or remove the folder to start anew"
                )

    def check_idle(self) -> None:
        """Refuse a folder in which another run is at work."""
        handle = self._hold() if is_own(self.path) else None
        if handle is not None:
            os.close(handle)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder if need be, and keep other runs out; a claim that comes to nothing leaves nothing."""
        missing = [parent for parent in self.path.absolute().parents if not parent.exists()]
        with writing(self.path):
            handle = self._lock()
            try:
                mark(self.path)
                yield
            finally:
                self._let_go(handle, missing)
                if handle is not None:
                    os.close(handle)

    def _let_go(self, handle: int | None, missing: Sequence[Path]) -> None:
        """Leave nothing of a claim that has come to nothing, nor the parents that were made for it."""
        if not self.has_begun():
            if handle is None or lies_at(handle, self.path):  # else it is gone, or another run has made it anew
                remove_mark(self.path)
            for parent in missing:
                with suppress(OSError):  # somebody has put something there
                    parent.rmdir()

    def begin(self, settings: Mapping[str, Any], resume: bool) -> None:
        """Note the settings of a run that is about to train, or see that it goes on with the same ones."""
        self.check(settings, resume)
        if not self.has_begun():
            self._empty()  # what a run left that was killed while it removed its folder
            write_file(self.path / SETTINGS, json.dumps(settings, indent=1, sort_keys=True).encode())

    def has_begun(self) -> bool:
        """Whether a run has come so far that it trains here."""
        return (self.path / SETTINGS).exists()

    def is_resumable(self) -> bool:
        """Whether there is work that need not be done again: a checkpoint, or a part of the run in its own folder."""
        parts = (self.path / name for name in self.files)
        return checkpoints.any_sealed(self.path) or any(part.is_dir() and any(part.iterdir()) for part in parts)

    def remove(self) -> None:
        """Remove what a run wrote, and the folder unless something else lies in it."""
        if is_own(self.path):
            (self.path / SETTINGS).unlink(missing_ok=True)
            self._empty()
            remove_mark(self.path)

    def clear(self) -> None:
        """Remove what an earlier run left, unless another one is at work there, or nobody can tell."""
        if not is_own(self.path):
            return
        with suppress(BlockingIOError):
            handle = lock(self.path)
            if handle is not None:
                self.remove()
                os.close(handle)

    def _empty(self) -> None:
        for path in self.path.iterdir():
            draft = DRAFT.fullmatch(path.name)  # one that was not finished
            name = path.name if draft is None else draft[1] or draft[2]
            if re.fullmatch(rf"{checkpoints.PREFIX}[0-9]+", name) and path.is_dir():
                checkpoints.remove(path)
            elif name in self.files or OWN_FILES.fullmatch(name):
                remove(path)

    def _lock(self) -> int | None:
        """Hold the folder, made anew where the run that held it before has just removed it."""
        while True:
            if not os.path.lexists(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            self._check_own()
            with suppress(FileNotFoundError):
                handle = self._hold()
                if handle is None:
                    _say_unlocked(self.path)
                if handle is None or lies_at(handle, self.path):
                    return handle
                os.close(handle)

    def _hold(self) -> int | None:
        try:
            return lock(self.path)
        except BlockingIOError:
            raise TrainingError(
                f"another run is at work in `{self.path}`; wait until it ends, or choose another `--out`"
            ) from None

    def _is_older(self) -> bool:
        """Whether this is the folder of a run before folders were marked, as far as its settings tell."""
        try:
            return DIGEST in _read(self.path / SETTINGS)
        except TrainingError:
            return False

    def _check_own(self) -> None:
        """Refuse a folder that no run made, and links, through which a run would write elsewhere."""
        if self.path.is_symlink():
            raise _through(self.path)
        if is_own(self.path):
            for path in self.path.rglob("*"):
                if path.is_symlink():
                    raise _through(path)
                if not (path.is_file() or path.is_dir()):  # a pipe may never begin, a device never end
                    raise TrainingError(
                        f"`{path}` is neither a file nor a folder; remove it, or choose another `--out`"
                    )
        elif self._is_older():
            raise TrainingError(
                f"`{self.path}` holds a run of an earlier version of slimformer, whose checkpoints this one does not "
                "read; finish it with that version, or remove the folder to start anew"
            )
        else:
            raise TrainingError(
                f"`{self.path}` is needed for checkpoints and was made by no run, so it is left alone; move it away, "
                "or choose another `--out`"
            )


def _through(link: Path) -> TrainingError:
    return TrainingError(
        f"`{link}` is a link, and checkpoints are not written through one; remove it, or choose another `--out`"
    )


@cache
def _say_unlocked(folder: Path) -> None:
    sys.stderr.write(
        f"note: locks are not kept where `{visible(str(folder))}` lies, so another run there would not be refused; "
        "start none\n"
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in one line that a disk is full, or that a folder is gone; what was written before stays as it is."""
    try:
        yield
    except Exception as error:
        code = system_code(error)
        if code not in FULL and code is not None and str(folder) in str(error):
            raise TrainingError(
                f"`{folder}` cannot be written any more: {os.strerror(code).lower()}; leave the folder alone while a "
                "run is at work there"
            ) from error
        # PyTorch does not say why it could not write.
        reason = os.strerror(code) if code in FULL else "writing failed" if "PytorchStreamWriter" in str(error) else ""
        if not reason:
            raise
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        raise TrainingError(
            f"no space to write in `{folder}` ({reason.lower()}), {free:,} bytes are free; free some space, and go on "
            "with `--resume`"
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        # A path of the settings may hold bytes that are no character.
        stored = parse_json(read_limited(path, LARGEST), halves=True)
    except (OSError, JsonError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TrainingError(
            f"`{path}` cannot be read: {reason.lower()}; remove `{path.parent}` to start anew"
        ) from error
    if not isinstance(stored, dict):
        raise TrainingError(
            f"`{path}` holds a {type(stored).__name__}, not settings; remove `{path.parent}` to start anew"
        )
    return stored
