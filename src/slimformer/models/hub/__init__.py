"""Models of the Hugging Face Hub: what their names look like, and their files, fetched into the Hub's own cache.

A name is resolved to one commit, and for as long as this process runs it stands for that commit: whatever reads a
model file by file reads one and the same model, though somebody may push to it meanwhile.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.errors import CheckpointError
from slimformer.models.trust import trusted

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What separates a name from a revision: a branch, a tag or a commit.
AT = "@"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
#: What stands behind it.
REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}"
_NAME = re.compile(rf"(?P<repo>(?:{_PART}/)?{_PART})(?:{AT}(?P<revision>{REVISION}))?")
#: What is fetched of a model: kinds of file that are read. Pickles never are.
FETCHED = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.md", "*.model", "*.onnx", "*.data")
#: The same model once more, for other programs.
NOT_FETCHED = ("onnx/*", "openvino/*", "original/*", "consolidated*")

#: (cache, endpoint, name, whether code is fetched) → the folder of the commit that the name stands for.
_folders: dict[tuple[str, str, HubName, bool], Path] = {}


@dataclass(frozen=True)
class HubName:
    """A model of the Hub: `owner/name` or `owner/name@revision`; the oldest ones have no owner.

    Args:
        repo: Owner and name.
        revision: A branch, a tag or a commit; None for the main branch as it is.
    """

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}{AT}{self.revision}"


def parse_name(text: str) -> HubName | None:
    """Read a name; None where a text cannot be one."""
    match = _NAME.fullmatch(text)
    if match is None or any(bad in match["repo"] for bad in ("--", "..")) or match["repo"].endswith(".git"):
        return None
    return HubName(match["repo"], match["revision"])


def fetch(name: HubName, instead: str = "give a folder") -> Path:
    """The folder with the files of a model, fetched unless they are in the cache already.

    Args:
        name: Which model.
        instead: What a message offers in place of it.
    """
    from huggingface_hub import constants, snapshot_download

    key = (str(constants.HF_HUB_CACHE), constants.ENDPOINT, name, trusted())
    if key in _folders and _folders[key].is_dir():
        return _folders[key]
    try:
        with quiet_unless_watched():
            folder = snapshot_download(
                name.repo,
                revision=name.revision,
                allow_patterns=[*FETCHED, *(["*.py"] if trusted() else [])],
                ignore_patterns=list(NOT_FETCHED),
            )
    except Exception as error:
        reason, advice = explain(error, name.revision)
        raise CheckpointError(
            f"`{name}` is no folder here and could not be fetched from the Hub{reason}; {advice}, or {instead}"
        ) from error
    _folders[key] = Path(folder)
    return _folders[key]


def cached(name: HubName) -> Path | None:
    """The folder that `fetch` would return, where it is here already; nothing is asked of the Hub."""
    from huggingface_hub import constants, snapshot_download

    key = (str(constants.HF_HUB_CACHE), constants.ENDPOINT, name, trusted())
    if key in _folders:
        return _folders[key]
    try:
        return Path(snapshot_download(name.repo, revision=name.revision, local_files_only=True))
    except (OSError, ValueError):
        return None


@contextmanager
def quiet_unless_watched() -> Iterator[None]:
    """Let the Hub's library draw its progress on a terminal alone."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def explain(error: BaseException, revision: str | None) -> tuple[str, str]:
    """What went wrong between us and the Hub, as a clause that follows, and what to do about it.

    What the Hub's library or a server says is not repeated: it may hold addresses and headers.

    Args:
        error: What was raised.
        revision: The revision asked for; None for the main branch.
    """
    from huggingface_hub import errors

    causes, status = list(causes_of(error)), status_of(error)
    if was_offline(error):
        return " in offline mode", "unset HF_HUB_OFFLINE to ask the Hub"
    if any(isinstance(each, errors.RevisionNotFoundError) for each in causes):
        return f": it has no revision `{revision or 'main'}`", "check the spelling of the branch, tag or commit"
    if any(isinstance(each, errors.GatedRepoError) for each in causes) or status == 403:
        return ": access is refused (403)", "ask its owner for access, and log in with a token that has it"
    if status == 401:
        return (
            ": it is not there, or the token does not let you see it (401)",
            "check the spelling, or log in with `hf auth login` or HF_TOKEN",
        )
    if status == 404:
        return ": it is not there (404)", "check the spelling"
    if status is not None:
        return f": the Hub answered {status}", "try again later"
    return "", "check the spelling and the network"


def status_of(error: BaseException) -> int | None:
    """With which status the Hub refused; None where it was not reached."""
    from huggingface_hub.errors import HfHubHTTPError

    return next((int(each.response.status_code) for each in causes_of(error) if isinstance(each, HfHubHTTPError)), None)


def was_offline(error: BaseException) -> bool:
    """Whether nothing was asked of the Hub because the user said so."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    return any(isinstance(each, OfflineModeIsEnabled) for each in causes_of(error))


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
