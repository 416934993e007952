"""`slimformer merge`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from slimformer.cli.methods import command_line
from slimformer.cli.output import Json, LoadFlags, Overwrite, human_bytes, print_json, print_line


def merge_mask(
    artifact: str,
    *,
    out: str,
    flags: Annotated[LoadFlags, Parameter(name="*")] = LoadFlags(),  # noqa: B008 (frozen)
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn a mask and its base into a plain checkpoint that loads without either.

    Args:
        artifact: The folder of the mask.
        out: Folder for the checkpoint; it must not exist yet.
    """
    from slimformer.artifact import merge

    manifest = merge(artifact, out, overwrite=overwrite, command=command_line(), **asdict(flags))
    size = sum(sums.bytes for name, sums in manifest.files.items() if name.endswith(".safetensors"))
    result: dict[str, Any] = {
        "artifact": artifact,
        "out": out,
        "architecture": manifest.model.architecture,
        "parameters": manifest.model.parameters,
        "bytes": size,
    }
    if as_json:
        print_json(result)
    else:
        print_line(f"{artifact} merged: {manifest.model.architecture}, {human_bytes(size)}, saved in {out}")
