"""`slimformer merge`."""

from __future__ import annotations

from typing import Any

from slimformer.cli.methods import command_line
from slimformer.cli.output import Json, Overwrite, human_bytes, print_json, print_line


def merge_mask(
    artifact: str,
    *,
    out: str,
    base: str | None = None,
    cast_base: bool = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn a mask and its base into a plain checkpoint that loads without either.

    Args:
        artifact: The folder of the mask.
        out: Folder for the checkpoint; it must not exist yet.
        base: The base, if it is not where it was when the mask was made.
        cast_base: Take a base that was cast to 16 bits since; answers change a little.
    """
    from slimformer.artifact import merge

    manifest = merge(artifact, out, base=base, overwrite=overwrite, command=command_line(), cast_base=cast_base)
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
