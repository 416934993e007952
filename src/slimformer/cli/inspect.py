"""`slimformer inspect`: what a model is made of, and what computes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import Size, human_bytes, print_json, print_line, print_table
from slimformer.errors import UsageError

if TYPE_CHECKING:
    from slimformer.anatomy import Anatomy, Census


def inspect_model(
    model: str | None = None,
    *,
    size: Size = None,
    runtime: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Show what a model is made of, with parameters and bytes per part. No weights are loaded.

    Args:
        model: A folder, a Hub name or an alias such as `minilm`.
        runtime: Show what computes on this machine instead: instruction set, threads, and whether the native engine
            runs the model, where one is given.
        as_json: Print one JSON object instead of a table.
    """
    if runtime:
        _show_runtime(model, as_json)
        return
    if model is None:
        raise UsageError("no model is given; name one, or ask for `--runtime`")
    from slimformer.anatomy import Anatomy, Census
    from slimformer.inference.door import open_skeleton

    anatomy = Anatomy.of(open_skeleton(model, size))
    census = Census.of(anatomy)
    summary = _summary(model, anatomy, census)
    if as_json:
        print_json(summary)
    else:
        _print(summary)


def _show_runtime(model: str | None, as_json: bool) -> None:
    from slimformer.inference.door import look_up, open_runnable
    from slimformer.runtime.checkpoint import EngineError
    from slimformer.runtime.native import describe_runtime

    runtime = describe_runtime()
    facts: dict[str, Any] = {
        "instruction_set": runtime.instruction_set,
        "available": list(runtime.available),
        "threads": runtime.threads,
    }
    if model is not None:
        try:
            open_runnable(look_up(model), engine="native", check=False, processor=False)
            facts |= {"model": model, "runs": True}
        except EngineError as error:
            facts |= {"model": model, "runs": False, "reason": error.reason}
        facts |= _operators(model)
    if as_json:
        print_json(facts)
        return
    names = ", ".join(facts["available"])
    print_line(f"kernels for {facts['instruction_set']} on {facts['threads']} threads; this machine has {names}")
    if model is not None:
        print_line(f"the native engine runs `{model}`" if facts["runs"] else facts["reason"])
    if "by_operators" in facts:
        print_line(
            f"in torch, {facts['by_operators']} packed weights run by operators and {facts['expanded']} as floats"
        )


def _operators(model: str) -> dict[str, Any]:
    """How many packed weights of an artifact torch runs by operators, and how many as floats; nothing for others."""
    from slimformer.artifact import read_manifest
    from slimformer.artifact.loading import load_model
    from slimformer.inference.source import is_artifact
    from slimformer.models import located
    from slimformer.operators import coverage

    if not is_artifact(model):
        return {}
    folder = located(model)
    if not read_manifest(folder).model.storage.startswith("packed"):
        return {}
    counted = coverage(load_model(folder))
    return {"by_operators": len(counted.packed), "expanded": len(counted.expanded)}


def _summary(model: str, anatomy: Anatomy, census: Census) -> dict[str, Any]:
    block = max(anatomy.blocks, key=lambda block: block.heads)
    widths = [block.ffn_width for block in anatomy.blocks]
    return {
        "model": model,
        "family": anatomy.family.name,
        "architecture": type(anatomy.model).__name__,
        "blocks": len(anatomy.blocks),
        "hidden": anatomy.hidden,
        "heads": block.heads,
        "key_value_heads": block.key_value_heads,
        "head_width": block.head_width,
        "ffn_width": max(widths),
        "ffn_widths": widths,
        "gated": block.gate is not None,
        "dtype": str(next(anatomy.model.parameters()).dtype).removeprefix("torch."),
        "packed": _layouts(anatomy),
        "stored": _stored(model),
        "parameters": census.parameters,
        "bytes": census.bytes,
        "parts": [{"part": part.part, "parameters": part.parameters, "bytes": part.bytes} for part in census.parts],
        "tied": list(census.tied),
    }


def _print(summary: dict[str, Any]) -> None:
    grouped = summary["key_value_heads"] != summary["heads"]
    facts = [
        f"{summary['architecture']} ({summary['family']})",
        f"{summary['blocks']} blocks",
        f"hidden {summary['hidden']}",
        f"{summary['heads']} heads of {summary['head_width']}",
        *([f"{summary['key_value_heads']} key-value heads"] if grouped else []),
        f"{'gated ' if summary['gated'] else ''}ffn {', '.join(map(str, dict.fromkeys(summary['ffn_widths'])))}",
        _types(summary),
    ]
    rows = [
        [part["part"], f"{part['parameters']:,}", human_bytes(part["bytes"]), _share(part, summary)]
        for part in summary["parts"]
    ]
    rows += [[f"{part} (tied, counted above)", "", "", ""] for part in summary["tied"]]
    rows.append(["all", f"{summary['parameters']:,}", human_bytes(summary["bytes"]), "100.0 %"])
    print_table(f"{summary['model']}: {', '.join(facts)}", ["part", "parameters", "bytes", "share"], rows)


def _layouts(anatomy: Anatomy) -> list[str]:
    """How the weights of a packed checkpoint lie in its file; empty for any other."""
    from slimformer.artifact.storage.quantizer import METHOD, PackedConfig

    described = getattr(anatomy.config, "quantization_config", None) or {}
    return PackedConfig(**described).layouts if described.get("quant_method") == METHOD else []


def _stored(model: str) -> str | None:
    """The type of weights that were rounded for the file; None where they lie there as they are loaded."""
    from slimformer.artifact import read_manifest
    from slimformer.inference.source import is_artifact
    from slimformer.models import located

    rounded = read_manifest(located(model)).model.rounded if is_artifact(model) else None
    return None if rounded is None else rounded.dtype


def _types(summary: dict[str, Any]) -> str:
    in_file = ", ".join(summary["packed"]) or summary["stored"]
    return f"{summary['dtype']} in memory, {in_file} in the file" if in_file else summary["dtype"]


def _share(part: dict[str, Any], summary: dict[str, Any]) -> str:
    return f"{100 * part['parameters'] / summary['parameters']:.1f} %"
