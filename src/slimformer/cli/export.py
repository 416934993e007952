"""`slimformer export`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.output import Json, Overwrite, SizeFlags, human_bytes, print_json, print_line
from slimformer.integrations.onnx.exporting import Difference, ExportResult, Numbers


def export_model(
    model: str,
    *,
    out: str,
    numbers: Numbers | None = None,
    length: int | None = None,
    flags: Annotated[SizeFlags, Parameter(name="*")] = SizeFlags(),  # noqa: B008 (frozen)
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a model as an ONNX file, run it once against the model, and print how far the two are apart.

    Args:
        model: An artifact, a folder, a Hub name or an alias.
        out: The file to write, such as `model.onnx`.
        numbers: What matrices are stored in: float, int8, or ternary or packed as the model was quantized; by default
            packed where it was, and float where it was not.
        length: Tokens of the longest text the two are compared on; the file takes any length.
    """
    from slimformer.integrations.onnx import to_onnx

    result = to_onnx(model, out, numbers=numbers, length=length, overwrite=overwrite, **asdict(flags))
    if as_json:
        print_json({"model": model, **result.as_dict()})
    else:
        _print(model, result)


def _print(model: str, result: ExportResult) -> None:
    stored = f", {result.matrices} matrices in few bits" if result.matrices else ""
    print_line(
        f"{model} exported: {result.architecture}, {result.numbers}{stored}, opset {result.opset}, "
        f"{human_bytes(result.bytes)}, saved in {result.path}"
    )
    print_line(_told(result.difference))


def _told(difference: Difference) -> str:
    same = "" if difference.agreement is None else f"; same decision in {100 * difference.agreement:.1f} %"
    return (
        f"difference to the source on {difference.examples} examples: at most {difference.largest:.3g} "
        f"({100 * difference.relative:.2g} % of the largest value), {difference.mean:.3g} on average{same}"
    )
