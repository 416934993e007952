"""`slimformer export`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, cast, get_args

from cyclopts import Parameter

from slimformer.cli.hub import as_hub, check_push, print_pushed, push_result
from slimformer.cli.methods import command_line
from slimformer.cli.output import (
    ConfigFile,
    Json,
    Overwrite,
    PushToHub,
    SizeFlags,
    human_bytes,
    print_json,
    print_line,
)
from slimformer.errors import UsageError
from slimformer.files import as_path
from slimformer.integrations.gguf.exporting import GGUF, GgufNumbers, GgufResult
from slimformer.integrations.onnx.exporting import Comparison, Difference, ExportResult, Numbers
from slimformer.tasks.options import TaskOptions


def export_model(
    model: str,
    *,
    out: str,
    numbers: GgufNumbers | None = None,
    length: int | None = None,
    options: Annotated[TaskOptions, Parameter(name="*")] = TaskOptions(),  # noqa: B008 (frozen)
    split: str = "dev",
    flags: Annotated[SizeFlags, Parameter(name="*")] = SizeFlags(),  # noqa: B008 (frozen)
    config: ConfigFile = None,
    overwrite: Overwrite = False,
    push_to_hub: PushToHub = None,
    as_json: Json = False,
) -> None:
    """Write a model as ONNX, run it and print how far it is from its source; or as a GGUF file for llama.cpp.

    With `--data` the ONNX model and its source also answer real examples, and how many answers agree is printed with
    the metrics of both.

    Args:
        model: An artifact, a folder, a Hub name or an alias.
        out: Folder for the model as ONNX with its tokenizer and all that is needed to ask it; one ONNX file, whose name
            ends in `.onnx`; or one GGUF file, whose name ends in `.gguf`.
        numbers: What matrices are stored in: float, int8, or ternary or packed as the model was quantized; by default
            packed where it was, and float where it was not. In a GGUF file also float16 and bfloat16, and q2_0 or
            tq2_0 for one type of ternary blocks.
        length: Tokens of the longest random text an ONNX file is compared on; the file takes any length.
        split: Which split of `--data` they are compared on.
    """
    data = TaskOptions.read(config, options.given())
    if GGUF.names(as_path(out)):
        others = {**data.given(), "length": length, "push_to_hub": push_to_hub}
        _check_gguf(out, [name.replace("_", "-") for name, value in others.items() if value is not None])
        _export_gguf(model, out, numbers, flags, overwrite=overwrite, as_json=as_json)
        return
    from slimformer.integrations.onnx import to_onnx

    if data.given() and data.data is None:
        flag = next(iter(data.given())).replace("_", "-")
        raise UsageError(f"`--{flag}` is for `--data`, which was not given; give both, or leave it out")
    if push_to_hub is not None and out.lower().endswith(".onnx"):
        raise UsageError(f"`--push-to-hub` is for a folder, and `--out` is the file `{out}`; give a folder")
    if numbers is not None and numbers not in get_args(Numbers):
        raise UsageError(f"`--numbers {numbers}` is for a GGUF file; give `--out` a name that ends in `.gguf`")
    check_push(push_to_hub)
    result = to_onnx(
        model,
        out,
        numbers=cast("Numbers | None", numbers),
        length=length,
        overwrite=overwrite,
        data=data if data.given() else None,
        split=split,
        command=command_line(),
        **asdict(flags),
    )
    pushed = push_result(out, push_to_hub)
    if as_json:
        print_json({"model": model, **result.as_dict(), **as_hub(pushed)})
    else:
        _print(model, result)
        print_pushed(pushed)


def _check_gguf(out: str, flags: list[str]) -> None:
    """Refuse flags that say nothing of a GGUF file."""
    for flag in flags:
        raise UsageError(f"`--{flag}` is for an export to ONNX, and `--out` is `{out}`; leave it out")


def _export_gguf(
    model: str, out: str, numbers: GgufNumbers | None, flags: SizeFlags, *, overwrite: bool, as_json: bool
) -> None:
    from slimformer.integrations.gguf import to_gguf

    result = to_gguf(model, out, numbers=numbers, overwrite=overwrite, **asdict(flags))
    if as_json:
        print_json({"model": model, **result.as_dict()})
        return
    types = ", ".join(f"{count} {name}" for name, count in result.types.items())
    print_line(
        f"{model} exported: {result.architecture} as {result.computed_as}, {result.numbers} ({types}), "
        f"{human_bytes(result.bytes)}, saved in {result.path}"
    )
    print_line(_rounded(result))


def _rounded(result: GgufResult) -> str:
    if result.rounded is None:
        return "every weight is in the file as the model has it"
    return (
        f"weights in the file are at most {100 * result.rounding:.2g} % of the largest of their matrix off, in "
        f"{result.rounded}"
    )


def _print(model: str, result: ExportResult) -> None:
    stored = f", {result.matrices} matrices in few bits" if result.matrices else ""
    print_line(
        f"{model} exported: {result.architecture}, {result.numbers}{stored}, opset {result.opset}, "
        f"{human_bytes(result.bytes)}, saved in {result.path}"
    )
    print_line(_told(result.difference))
    if result.comparison is not None:
        print_line(_compared(result.comparison))


def _told(difference: Difference) -> str:
    same = "" if difference.agreement is None else f"; same decision in {100 * difference.agreement:.1f} %"
    return (
        f"difference to the source on {difference.examples} examples: at most {difference.largest:.3g} "
        f"({100 * difference.relative:.2g} % of the largest value), {difference.mean:.3g} on average{same}"
    )


def _compared(comparison: Comparison) -> str:
    same = "" if comparison.agreement is None else f"same answer in {100 * comparison.agreement:.1f} %, "
    metrics = ", ".join(
        f"{name} {value:.4f} (source {comparison.source_metrics[name]:.4f})"
        for name, value in comparison.metrics.items()
    )
    return (
        f"on {comparison.task}/{comparison.split}, {comparison.examples} examples: {same}outputs at most "
        f"{comparison.largest:.3g} apart; {metrics}"
    )
