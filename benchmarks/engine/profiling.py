"""Where the time of a ternary forward goes: the kernels of the engine with a clock around each."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from engine.batches import SHAPES
from engine.products import build
from slimformer.runtime.native import instruction_set

if TYPE_CHECKING:
    import argparse

LENGTHS = {16: 200, 128: 50}  # tokens, and how many forwards


def profile(arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of one forward by one thread, and the share of each kind of kernel in percent."""
    if arguments.tiny:  # it would compile the kernels
        return {}
    program = build(arguments.work / "native") / "profile"
    result: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        result[name] = {}
        for tokens, forwards in LENGTHS.items():
            numbers = (1, *(shape[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")))
            command = [program, instruction_set(), *numbers, shape["intermediate_size"], tokens, forwards]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
            times = json.loads(done.stdout)
            forward = times.pop("forward")
            shares = {kind: round(100 * value / forward, 1) for kind, value in times.items()}
            result[name][f"1x{tokens}"] = {"ms": forward, **shares, "else": round(100 - sum(shares.values()), 1)}
        print(name, result[name], flush=True)
    return {"profile": result}
