"""`slimformer verify`, `merge`, `unpack` and `extract`: what is done to the folder of an artifact as it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from slimformer.cli.hub import as_hub, check_push, print_pushed, push_result
from slimformer.cli.methods import command_line
from slimformer.cli.output import (
    BaseFlags,
    Check,
    ConfigFile,
    Json,
    LoadFlags,
    Overwrite,
    PushToHub,
    StoreAs,
    human_bytes,
    print_json,
    print_line,
)
from slimformer.errors import UsageError
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from slimformer.artifact import Manifest
    from slimformer.inference.extraction import Choice


def merge_mask(
    artifact: str,
    *,
    out: str,
    flags: Annotated[LoadFlags, Parameter(name="*")] = LoadFlags(),  # noqa: B008 (frozen)
    store: StoreAs = None,
    overwrite: Overwrite = False,
    push_to_hub: PushToHub = None,
    as_json: Json = False,
) -> None:
    """Turn a mask and its base into a plain checkpoint that loads without either.

    Args:
        artifact: The folder of the mask.
        out: Folder for the checkpoint; it must not exist yet.
    """
    from slimformer.artifact import merge

    check_push(push_to_hub)
    manifest = merge(artifact, out, store=store, overwrite=overwrite, command=command_line(), **asdict(flags))
    pushed = push_result(out, push_to_hub)
    result = _converted(artifact, out, manifest)
    if as_json:
        print_json(result | as_hub(pushed))
        return
    size = human_bytes(result["bytes"])
    print_line(f"{artifact} merged: {manifest.model.architecture}, {size}, saved in {out}")
    _print_rounding(manifest)
    print_pushed(pushed)


def unpack_model(
    artifact: str,
    *,
    out: str,
    check: Check = True,
    store: StoreAs = None,
    overwrite: Overwrite = False,
    push_to_hub: PushToHub = None,
    as_json: Json = False,
) -> None:
    """Turn a packed model into a plain float checkpoint that loads without slimformer.

    Weights stay as they are. Plain Transformers rounds no activations: how far answers move by that is measured.

    Args:
        artifact: The folder of the packed model.
        out: Folder for the checkpoint; it must not exist yet.
    """
    from slimformer.artifact import unpack

    check_push(push_to_hub)
    manifest = unpack(artifact, out, check=check, store=store, overwrite=overwrite, command=command_line())
    pushed = push_result(out, push_to_hub)
    step, result = manifest.steps[-1].config, _converted(artifact, out, manifest)
    if as_json:
        print_json({**result, "moved": step["moved"], "activations": step["activations"]} | as_hub(pushed))
        return
    size = human_bytes(result["bytes"])
    print_line(f"{artifact} unpacked: {manifest.model.architecture}, {size}, saved in {out}")
    if step["activations"] is None:
        print_line("answers are the same: no activations were rounded")
    else:
        print_line(
            f"activations are not rounded any more: answers moved by {100 * cast('float', step['moved']):.2g} % of the "
            f"largest; measure it with `slimformer evaluate {out}`"
        )
    _print_rounding(manifest)
    print_pushed(pushed)


def _converted(artifact: str, out: str, manifest: Manifest) -> dict[str, Any]:
    """What was made of an artifact, as JSON types."""
    size = sum(sums.bytes for name, sums in manifest.files.items() if name.endswith(".safetensors"))
    return {
        "artifact": artifact,
        "out": out,
        "architecture": manifest.model.architecture,
        "parameters": manifest.model.parameters,
        "bytes": size,
        **_rounding(manifest),
    }


def _rounding(manifest: Manifest) -> dict[str, Any]:
    return {} if manifest.model.rounded is None else {"rounded": manifest.model.rounded.model_dump()}


def _print_rounding(manifest: Manifest) -> None:
    from slimformer.artifact.storage.precision import describe_rounding

    if manifest.model.rounded is not None:
        print_line(describe_rounding(manifest.model.rounded))


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


def extract_size(
    artifact: str,
    *,
    out: str | None = None,
    publish: str | None = None,
    allocation: str | None = None,
    max_params: str | None = None,
    max_bytes: str | None = None,
    max_flops: str | None = None,
    max_latency: float | None = None,
    length: int | None = None,
    order: Literal["increasing", "decreasing", "increase-decrease", "decrease-increase"] = "increasing",
    sensitivity: Annotated[bool, Parameter(negative="")] = False,
    options: Annotated[TaskOptions, Parameter(name="*")] = TaskOptions(),  # noqa: B008 (frozen)
    check: Check = True,
    config: ConfigFile = None,
    store: StoreAs = None,
    overwrite: Overwrite = False,
    push_to_hub: PushToHub = None,
    as_json: Json = False,
) -> None:
    """Write one size of an elastic model, or the largest mixture of sizes within a budget, as a model of its own.

    Args:
        artifact: The folder of the elastic model.
        out: Folder for the result; it must not exist yet.
        publish: A name for the allocation, which the elastic model keeps beside its sizes: `--size NAME` means it from
            then on. With `--data` it is measured too.
        allocation: A size such as `M` or 0.25, or one for each block joined by commas, 0 for a block that is skipped.
        max_params: In place of it, the most weights that the file may hold, such as 15M.
        max_bytes: Or the most bytes that its weights may take, such as 60MB or 57MiB.
        max_flops: Or the most FLOPs of one text of `--length` tokens, or of one image.
        max_latency: Or the most milliseconds it may take here, by the time of each block at each size.
        length: Tokens of that text; by default 128, or as many as the model takes.
        order: Which blocks are larger within a budget, if not all can be alike.
        sensitivity: Choose by the loss that each size costs in each block on training examples of `--data` instead.
    """
    from slimformer.counts import check_count
    from slimformer.inference.extraction import Choice

    if length is not None:
        check_count("length", length)
    data = TaskOptions.read(config, options.given())
    _check_use(data, out, publish, store, sensitivity=sensitivity)
    if out is None and push_to_hub is not None:
        raise UsageError(f"`--push-to-hub` is `{push_to_hub}`, and nothing is written without `--out`; give both")
    check_push(push_to_hub)
    choice = Choice(
        allocation, max_params, max_bytes, max_flops, max_latency, length, order, data if sensitivity else None
    )
    lines: dict[str, str] = {}
    result: dict[str, Any] = {"artifact": artifact}
    if out is not None:
        settings = {"check": check, "overwrite": overwrite, "store": store}
        result |= {"out": out, **_extracted(artifact, out, choice, lines, **settings)}
    if publish is not None:
        result["published"] = _published(artifact, publish, choice, data, lines, check=check)
    if out is not None and (pushed := push_result(out, push_to_hub)) is not None:
        result |= as_hub(pushed)
        lines["pushed"] = pushed.line()
    if as_json:
        print_json(result)
        return
    for line in lines.values():
        print_line(line)


def _check_use(
    data: TaskOptions, out: str | None, publish: str | None, store: str | None, *, sensitivity: bool
) -> None:
    if out is None and publish is None:
        raise UsageError("nothing says where the size goes; give `--out`, or `--publish` and a name")
    if out is None and store is not None:
        raise UsageError(f"`--store` is `{store}`, and no file is written without `--out`; give both, or leave it out")
    if data.given() and not sensitivity and publish is None:
        name = next(iter(data.given())).replace("_", "-")
        raise UsageError(f"`--{name}` is for `--sensitivity`, which was not given; give both, or leave it out")


def _extracted(artifact: str, out: str, choice: Choice, lines: dict[str, str], **settings: Any) -> dict[str, Any]:
    from slimformer.artifact.storage.precision import describe_rounding
    from slimformer.inference.extraction import extract

    result = extract(artifact, out, choice, command=command_line(), **settings)
    model = result.manifest.model
    lines["out"] = (
        f"{artifact} at {result.allocation}: {model.architecture}, {model.parameters:,} parameters, "
        f"{human_bytes(result.bytes)}, {result.flops:,} FLOPs, {model.storage}, saved in {out}"
    )
    if model.storage == "per-block":
        lines["widths"] = "its blocks have different widths; Python needs `import slimformer` before `from_pretrained`"
    if model.rounded is not None:
        lines["rounded"] = describe_rounding(model.rounded)
    return {**result.summary(), **_rounding(result.manifest)}


def _published(
    artifact: str, name: str, choice: Choice, data: TaskOptions, lines: dict[str, str], *, check: bool
) -> dict[str, Any]:
    from slimformer.inference.extraction import publish

    record = publish(artifact, name, choice, evaluation=data if data.data is not None else None, check=check)
    quality = "".join(f", {metric} {value:.4f}" for metric, value in record.quality.items())
    lines["published"] = (
        f"{artifact}: `--size {name}` is {record.allocation}, {record.cost['parameters']:,.0f} parameters{quality}"
    )
    return asdict(record)
