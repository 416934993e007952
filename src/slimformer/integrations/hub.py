"""Pushing an artifact to the Hugging Face Hub: verified first, in one commit, without a path of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.artifact import verify
from slimformer.artifact.layout import CARD, MANIFEST
from slimformer.artifact.manifest import read_manifest
from slimformer.artifact.publishing import public_files
from slimformer.artifact.storage.handler import storage_of
from slimformer.errors import ArtifactError, UsageError, describe
from slimformer.files import as_path
from slimformer.models.hub import AT, HubName, parse_name, quiet_unless_watched, status_of, was_offline

if TYPE_CHECKING:
    from pathlib import Path

    from huggingface_hub import HfApi

#: What a repository may hold beside an artifact: what the Hub itself puts into it.
OF_THE_HUB = frozenset({".gitattributes", CARD})


@dataclass(frozen=True)
class Pushed:
    """An artifact on the Hub.

    Args:
        name: Owner and name.
        url: Its page.
        commit: The commit that holds it: `name@commit` names it for good.
        notes: What a user should know of it.
    """

    name: str
    url: str
    commit: str
    notes: tuple[str, ...] = ()

    def line(self) -> str:
        """The same as a person reads it."""
        return f"pushed to {self.url}, commit {self.commit[:12]}"

    def summary(self) -> dict[str, Any]:
        """The same as JSON types."""
        return {"name": self.name, "url": self.url, "commit": self.commit, "notes": list(self.notes)}


def push(
    folder: str | Path,
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
) -> Pushed:
    """Push an artifact to the Hub, all of it in one commit or nothing.

    It is verified first. Settings, commands and cards are pushed with the last part of paths alone; the folder stays
    as it is.

    Args:
        folder: The artifact.
        name: `owner/name`, or `name` for one's own; a repository that is there must hold an artifact or nothing.
        private: Whether only the owner may see it.
        revision: A branch, made if it is not there; the main branch by default.
        message: What the commit says.
        base: For a mask, where its base is now, if it has moved.
        cast_base: For a mask, whether that base may have been cast to 16 bits.

    Example:
        >>> push("out/sst2", "me/sst2-ternary").url
    """
    path = as_path(folder)
    repo = check_name(name, revision)
    verify(path, base=base, cast_base=cast_base)
    check_login(name)
    files = public_files(path)
    try:
        with quiet_unless_watched():
            return _push(files, path, repo, private, revision, message)
    except ArtifactError:
        raise
    except Exception as error:
        raise _refusal(error, str(folder), name, revision) from error


def check_name(name: str, revision: str | None = None) -> HubName:
    """Refuse, before any work, what cannot be the name of a repository or of a branch."""
    parsed = parse_name(name) if isinstance(name, str) else None
    if parsed is None:
        raise UsageError(
            f"`{describe(name)}` is no name of the Hub; give `owner/name`, of letters, digits and single `-`, `_`, `.`"
        )
    if parsed.revision is not None:
        raise UsageError(f"`{name}` names a revision; give the name alone, and the branch with `--revision`")
    if revision is not None and parse_name(f"x{AT}{revision}") is None:
        raise UsageError(f"`--revision` is `{describe(revision)}`, which no branch is called; give a name of one")
    return parsed


def check_login(name: str) -> None:
    """Refuse, before any work, to push without a token that the Hub knows."""
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise ArtifactError(f"no token to push `{name}` with; log in with `hf auth login`, or set HF_TOKEN")
    try:
        HfApi().whoami()
    except Exception as error:
        reason, advice = _explain(error)
        raise ArtifactError(f"nothing can be pushed to `{name}`{reason}; {advice}") from error


def _push(
    files: dict[str, Path | bytes],
    folder: Path,
    repo: HubName,
    private: bool,
    revision: str | None,
    message: str | None,
) -> Pushed:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    name = api.create_repo(repo.repo, private=True if private else None, exist_ok=True).repo_id
    if private and not api.model_info(name).private:
        raise ArtifactError(f"`{name}` is public already; make it private on its page, or leave `--private` out")
    if revision is not None:
        api.create_branch(name, branch=revision, exist_ok=True)
    there = _check_replaceable(api, name, revision)
    operations: list[Any] = [
        CommitOperationAdd(path_in_repo=each, path_or_fileobj=content if isinstance(content, bytes) else str(content))
        for each, content in sorted(files.items())
    ]
    operations += [CommitOperationDelete(path_in_repo=each) for each in sorted(there - files.keys() - OF_THE_HUB)]
    commit = api.create_commit(
        name, operations, commit_message=message or f"Push {folder.resolve().name}", revision=revision
    )
    return Pushed(name, f"{api.endpoint}/{name}", commit.oid, _notes(folder))


def _check_replaceable(api: HfApi, name: str, revision: str | None) -> set[str]:
    """The files of a repository; refused is one that holds something else than an artifact."""
    there = set(api.list_repo_files(name, revision=revision))
    others = sorted(there - OF_THE_HUB)
    if others and MANIFEST not in there:
        raise ArtifactError(
            f"`{name}` holds `{others[0]}` and is no artifact, so it is not replaced; choose another name, or a branch "
            "of its own with `--revision`"
        )
    return there


def _notes(folder: Path) -> tuple[str, ...]:
    manifest = read_manifest(folder)
    base = manifest.base
    if not storage_of(folder, manifest).needs_base or base is None or base.revision is not None:
        return ()
    return (f"its base `{base.name}` is not on the Hub: whoever loads the mask gives it with `--base`",)


def _refusal(error: Exception, folder: str, name: str, revision: str | None) -> ArtifactError:
    reason, advice = _explain(error)
    again = f"slimformer push {folder} {name}{'' if revision is None else f' --revision {revision}'}"
    return ArtifactError(
        f"`{folder}` was not pushed to `{name}`{reason}; nothing of it shows there, {advice}, and push again: {again}"
    )


def _explain(error: Exception) -> tuple[str, str]:
    """What went wrong, as a clause that follows, and what to do; what a server says is not repeated."""
    if was_offline(error):
        return " in offline mode", "unset HF_HUB_OFFLINE"
    status = status_of(error)
    if status == 401:
        return ": the token is not valid (401)", "log in with `hf auth login`, or set HF_TOKEN"
    if status == 403:
        return ": the token may not write there (403)", "take a token with write access, or a name of your own"
    if status is not None:
        return f": the Hub answered {status}", "try again later"
    return ": the Hub could not be reached, or the connection was lost", "check the network"
