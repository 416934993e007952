"""`slimformer verify`."""

from __future__ import annotations

from slimformer.cli.output import Json, print_json, print_line


def verify_artifact(artifact: str, *, base: str | None = None, cast_base: bool = False, as_json: Json = False) -> None:
    """Check that an artifact is whole: every byte, and that it still gives the outputs recorded at saving.

    Args:
        artifact: The folder to check.
        base: Where the base of a mask is now, if it has moved.
        cast_base: Take a base that was cast to 16 bits since; answers change a little.
    """
    from slimformer.artifact import verify

    report = verify(artifact, base=base, cast_base=cast_base)
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
