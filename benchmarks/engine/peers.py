"""Every runtime that answers the same batches, and what is right for it to answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.variants import BLOCKS
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from engine.batches import Batch
    from engine.variants import Variants
    from slimformer.runtime.onnx import Array

NATIVE, NATIVE_FLOAT = "slimformer, ternary", "slimformer, float32"
ORT_INT8, ORT_FLOAT = "ONNX Runtime, int8", "ONNX Runtime, float32"
#: Its other int8: rows in blocks with a scale each, as `slimformer export` writes them.
ORT_INT8_BLOCKS = "ONNX Runtime, int8 in blocks"
#: How far answers may be from those of torch, as a share of their length; unlike ones are 1.4 away. Scales that were
#: measured on other tokens are the furthest.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.5, "calibrated int8": 0.8, "ternary": 0.25, "2-bit": 0.25}


@dataclass(frozen=True)
class Peer:
    """A runtime that has opened a model.

    Args:
        answer: Logits of a batch.
        numbers: What it computes with, one of `TOLERANCES`.
    """

    answer: Callable[[Batch], Array]
    numbers: str

    def check(self, name: str, batch: Batch, references: dict[str, Array]) -> float:
        """How far the answer is from that of torch; an error where it is too far."""
        reference = references["ternary" if self.numbers in ("ternary", "2-bit") else "float32"]
        answered = self.answer(batch)
        error = float(np.linalg.norm(answered - reference) / np.linalg.norm(reference))
        if answered.shape != reference.shape or not error <= TOLERANCES[self.numbers]:
            raise AssertionError(f"{name} answers {error:.3f} away from torch, {TOLERANCES[self.numbers]} is allowed")
        return error


def references(variants: Variants, batch: Batch) -> dict[str, Array]:
    """The answers of torch in float32, and with the ternary weights."""
    return {"float32": in_torch(variants.float, batch), "ternary": in_torch(variants.ternary, batch)}


@torch.inference_mode()
def in_torch(model: Any, batch: Batch) -> Array:
    """A forward in torch."""
    inputs = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
    return np.asarray(model(**inputs).logits.float())


def engines(variants: Variants, threads: int, only: Collection[str] = ()) -> dict[str, Peer]:
    """The native engine in all its numbers."""
    peers = {}
    for numbers, kept in {"ternary": "ternary", "int8": "int8", "float32": "float", "bfloat16": "bfloat16"}.items():
        name = f"slimformer, {numbers}"
        if not only or name in only:
            encoder = NativeEncoder(variants.saved(kept), threads=threads)
            peers[name] = Peer(partial(_encode, encoder), numbers)
    return peers


def _encode(encoder: NativeEncoder, batch: Batch) -> Array:
    return encoder.run(batch.sequences)


def onnx_runtime(variants: Variants, threads: int, only: Collection[str] = ()) -> dict[str, Peer]:
    """ONNX Runtime; dynamic int8 is what its own tool writes."""
    files = {
        ORT_FLOAT: ("float", "float32"),
        ORT_INT8: ("dynamic int8", "int8"),
        ORT_INT8_BLOCKS: ("int8 in blocks", "int8"),
        **{f"ONNX Runtime, 2-bit, blocks of {size}": (f"2-bit, {size}", "2-bit") for size in BLOCKS},
    }
    peers = {}
    for name, (file, numbers) in files.items():
        if not only or name in only:
            peers[name] = Peer(partial(_in_session, OnnxSession(variants.onnx(file), threads)), numbers)
    return peers


def _in_session(session: OnnxSession, batch: Batch) -> Array:
    return session.run(batch.arrays)["logits"]


def torches(variants: Variants, compiled: bool) -> dict[str, Peer]:
    """PyTorch, and what its compiler makes of the same models, once for all shapes."""
    peers = {}
    for numbers, model in {"float32": variants.float, "bfloat16": variants.bfloat16}.items():
        peers[f"torch, {numbers}"] = Peer(partial(in_torch, model), numbers)
        if compiled:
            faster = torch.compile(model, dynamic=True)
            peers[f"torch.compile, {numbers}"] = Peer(partial(in_torch, faster), numbers)
    return peers


def open_peers(
    variants: Variants, threads: int, tiny: bool = False, only: Collection[str] = ()
) -> tuple[dict[str, Peer], dict[str, str]]:
    """All runtimes that there are or those of some names, and why others are left out."""
    peers = engines(variants, threads, only) | onnx_runtime(variants, threads, only)
    left_out = {}
    if not only:
        peers |= torches(variants, compiled=not tiny)
    if tiny:
        left_out["torch.compile"] = "it compiles for minutes"
    if tiny or find_spec("openvino") is None:
        left_out["OpenVINO"] = "it is not asked in a tiny run" if tiny else "`openvino` is not installed"
    else:
        from engine.openvino_peers import openvino_peers

        more, others = openvino_peers(variants, threads, only)
        peers, left_out = peers | more, left_out | others
    return peers, left_out
