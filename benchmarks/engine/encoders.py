"""Whole encoders: all runtimes on the same batches, each checked before it is timed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batches import SHAPES, TINY, batches, drawn
from engine.peers import open_peers, references
from engine.timing import take_turns
from engine.variants import Variants

if TYPE_CHECKING:
    import argparse


def encoders(arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of every runtime, by shape and batch, and how far its answers are from those of torch."""
    result: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, shape in {"tiny": TINY}.items() if arguments.tiny else SHAPES.items():
        if not arguments.tiny and name not in arguments.shapes:
            continue
        variants = Variants(shape, arguments.seed, arguments.work / name)
        peers, left_out = open_peers(variants, arguments.threads, arguments.tiny)
        asked = {"2x8": drawn(2, 8)} if arguments.tiny else batches(arguments.longest, arguments.seed)
        result[name] = {}
        for label, batch in asked.items():
            expected = references(variants, batch)
            errors = {peer: each.check(peer, batch, expected) for peer, each in peers.items()}
            runs = {peer: partial(each.answer, batch) for peer, each in peers.items()}
            seconds = take_turns(runs, arguments.seconds)
            result[name][label] = {
                "tokens": batch.tokens,
                "padded": batch.padded,
                "ms": {peer: round(1e3 * value, 3) for peer, value in seconds.items()},
                "errors": {peer: float(f"{value:.2g}") for peer, value in errors.items()},
            }
            print(name, label, result[name][label]["ms"], flush=True)
    return {"encoders": result, "left_out": left_out}
