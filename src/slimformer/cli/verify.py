"""`slimformer verify`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.output import BaseFlags, Json, print_json, print_line


def verify_artifact(
    artifact: str,
    *,
    flags: Annotated[BaseFlags, Parameter(name="*")] = BaseFlags(),  # noqa: B008 (frozen)
    as_json: Json = False,
) -> None:
    """Check that an artifact is whole: every byte, and that it still gives the outputs recorded at saving.

    Args:
        artifact: The folder to check.
    """
    from slimformer.artifact import verify

    report = verify(artifact, **asdict(flags))
    if as_json:
        print_json(
            {
                "artifact": artifact,
                "files": len(report.files),
                "bytes": report.bytes,
                "max_difference": report.max_difference,
            }
        )
    else:
        print_line(
            f"{artifact}: {len(report.files)} files unchanged, outputs as recorded "
            f"(largest difference {report.max_difference:.2g})"
        )
