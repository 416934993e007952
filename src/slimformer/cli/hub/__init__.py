"""`slimformer push`, and `--push-to-hub` of the commands that write a result of their own."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import BaseFlags, Json, PushToHub, print_json, print_line, print_notes

if TYPE_CHECKING:
    from slimformer.integrations.hub import Pushed


def push_artifact(
    artifact: str,
    name: str,
    *,
    private: Annotated[bool, Parameter(negative="")] = False,
    revision: str | None = None,
    message: str | None = None,
    flags: Annotated[BaseFlags, Parameter(name="*")] = BaseFlags(),  # noqa: B008 (frozen)
    as_json: Json = False,
) -> None:
    """Push an artifact to the Hugging Face Hub: verified first, in one commit, without a path of this machine.

    Args:
        artifact: The folder of the artifact.
        name: Its name there, `owner/name`; `name` alone for one of your own.
        private: Let nobody else see it.
        revision: Branch it goes to, made if it is not there; by default the main one.
        message: What the commit says.
    """
    from slimformer.integrations.hub import push

    pushed = push(artifact, name, private=private, revision=revision, message=message, **asdict(flags))
    print_notes(pushed.notes)
    if as_json:
        print_json({"artifact": artifact, **pushed.summary()})
    else:
        print_pushed(pushed)


def check_push(name: PushToHub) -> None:
    """Refuse, before any work, a name that cannot be one, and a missing token."""
    from slimformer.integrations.hub import check_login, check_name

    if name is not None:
        check_name(name)
        check_login(name)


def push_result(folder: str, name: PushToHub, **flags: Any) -> Pushed | None:
    """Push what a command wrote, if that was asked."""
    from slimformer.integrations.hub import push

    return None if name is None else push(folder, name, **flags)


def as_hub(pushed: Pushed | None) -> dict[str, Any]:
    """What JSON says of it; nothing where nothing was pushed."""
    return {} if pushed is None else {"hub": pushed.summary()}


def print_pushed(pushed: Pushed | None) -> None:
    """Say where something was pushed to."""
    if pushed is not None:
        print_line(pushed.line())
