"""How the time of a forward grows with texts, tokens, layers and threads, in the width of MiniLM."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batches import SHAPES, TINY, Batch, drawn
from engine.peers import NATIVE, NATIVE_FLOAT, ORT_FLOAT, ORT_INT8, Peer, open_peers, references
from engine.timing import take_turns
from engine.variants import Variants
from slimformer.report.plots import Series, curves

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

WHO = (NATIVE, NATIVE_FLOAT, ORT_FLOAT, ORT_INT8, "OpenVINO, bfloat16", "OpenVINO, int8 weights")
#: Whose name stands at an axis of the pictures, and what else is constant.
AXES = {
    "texts": "texts of 64 tokens, at once",
    "tokens": "tokens of one text",
    "layers": "layers, for one text of 128 tokens",
    "threads": "threads, for 8 texts of 128 tokens",
}
TEXTS = (1, 2, 4, 8, 16, 32)
TOKENS = (16, 32, 64, 128, 256, 512)
LAYERS = (2, 6, 12, 24)
TINY_LAYERS = (1, 2)
THREADS = (1, 2)


def growth(arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds by axis, place on it and runtime."""
    shape = TINY if arguments.tiny else SHAPES["MiniLM-L6"]
    layers = shape["num_hidden_layers"]

    def variants(depth: int) -> Variants:
        name = "tiny" if arguments.tiny else "MiniLM-L6"
        name = name if depth == layers else f"{name}, {depth} layers"
        return Variants({**shape, "num_hidden_layers": depth}, arguments.seed, arguments.work / name)

    def opened(depth: int, threads: int) -> dict[str, Peer]:
        return open_peers(variants(depth), threads, arguments.tiny, WHO)[0]

    def asked(peers: dict[str, Peer], depth: int, batch: Batch) -> dict[str, float]:
        expected = references(variants(depth), batch)
        for name, peer in peers.items():
            peer.check(name, batch, expected)
        runs: dict[str, Callable[[], Any]] = {name: partial(peer.answer, batch) for name, peer in peers.items()}
        milliseconds = {name: round(1e3 * value, 3) for name, value in take_turns(runs, arguments.seconds / 6).items()}
        print(depth, len(batch.sequences), batch.padded, milliseconds, flush=True)
        return milliseconds

    usual = opened(layers, arguments.threads)
    few, depths = slice(2 if arguments.tiny else None), TINY_LAYERS if arguments.tiny else LAYERS
    result = {
        "texts": {str(count): asked(usual, layers, drawn(count, 64)) for count in TEXTS[few]},
        "tokens": {str(count): asked(usual, layers, drawn(1, count)) for count in TOKENS[few]},
        "layers": {str(depth): asked(opened(depth, arguments.threads), depth, drawn(1, 128)) for depth in depths},
        "threads": {str(count): asked(opened(layers, count), layers, drawn(8, 128)) for count in THREADS},
    }
    return {"growth": result}


def pictures(result: dict[str, Any], name: str, folder: Path) -> None:
    """One picture for each axis: milliseconds, and how many times as long as the engine's ternary forward."""
    for axis, places in result["growth"].items():
        x = [float(place) for place in places]
        names = list(next(iter(places.values())))
        times = [Series(peer, x, [places[place][peer] for place in places]) for peer in names]
        ratios = [
            Series(peer, x, [places[place][peer] / places[place][NATIVE] for place in places])
            for peer in names
            if peer != NATIVE
        ]
        panels = [("ms", times), (f"times as long as {NATIVE}", ratios)]
        (folder / f"{name}_{axis}.svg").write_text(curves(panels, x_label=AXES[axis]), encoding="utf-8")
