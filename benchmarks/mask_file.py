"""What a mask file of MiniLM takes, by several codes and beside LoRA adapters: 5 % of blocks 2 to 5 are dropped."""

from __future__ import annotations

import lzma
import math
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from harness import keep, options
from slimformer import Anatomy, models
from slimformer.artifact import MaskFile, Step, save
from slimformer.artifact.layout import MASK
from slimformer.formats import gaps
from slimformer.methods.mask import MaskConfig
from slimformer.methods.mask.scores import Masking

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

RANK = 8


def codes() -> dict[str, Callable[[Tensor], float]]:
    """Ways of writing the bits of a matrix → bytes they take."""
    return {
        "bits, eight to a byte (format 1)": lambda flags: math.ceil(flags.numel() / 8),
        "bits, zlib": lambda flags: len(zlib.compress(np.packbits(flags.numpy()).tobytes(), 9)),
        "gaps, zlib with repetitions": lambda flags: len(zlib.compress(written_gaps(flags), 9)),
        "gaps, LZMA": lambda flags: len(lzma.compress(written_gaps(flags), preset=9)),
        "gaps, Rice": rice,
        "gaps, Huffman by zlib (format 2)": lambda flags: gaps.encode(flags).numel(),
        "entropy": entropy,
    }


def written_gaps(flags: Tensor) -> bytes:
    """Gaps between dropped weights, a byte each; longer ones are rare enough not to count."""
    return np.minimum(np.diff(np.flatnonzero(~flags.numpy().ravel()), prepend=-1) - 1, 255).astype(np.uint8).tobytes()


def rice(flags: Tensor) -> float:
    """Bytes of the gaps in the best Rice code: the quotient by 2^k in ones, the rest in k bits."""
    lengths = np.diff(np.flatnonzero(~flags.numpy().ravel()), prepend=-1) - 1
    return min(float((lengths >> k).sum() + lengths.size * (k + 1)) / 8 for k in range(9))


def entropy(flags: Tensor) -> float:
    """Bytes below which no code of independent bits comes."""
    share = float(flags.float().mean())
    return -sum(p * math.log2(p) for p in (share, 1 - share) if p) * flags.numel() / 8


def adapter_bytes(anatomy: Anatomy, roles: tuple[str, ...] | None, width: int) -> int:
    """Bytes of a LoRA adapter (arXiv 2106.09685): two matrices of rank 8 for each adapted one, in all blocks."""
    shapes = [
        matrix.shape
        for block in anatomy.blocks
        for role, matrix in block.matrices.items()
        if roles is None or role in roles
    ]
    return sum(RANK * (rows + columns) * width for rows, columns in shapes)


def main() -> None:
    """Write a mask of MiniLM and measure it."""
    arguments = options(__doc__).parse_args()
    torch.set_num_threads(arguments.threads)
    base = models.resolve("minilm")
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2).eval()
    anatomy = Anatomy.of(AutoModelForSequenceClassification.from_pretrained(base, num_labels=2))
    masking = Masking.start(model, MaskConfig(initial_sparsity=0.05, blocks="5-" if arguments.tiny else "2-"))
    masking.end(model)
    bits = {name: flags.cpu() for name, flags in masking.bits.items()}
    coded = {name: round(sum(map(code, bits.values())) / 1e6, 3) for name, code in codes().items()}
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "mask", model, base="minilm", step=Step(method="mask"), storage=masking.storage())
        path = Path(folder) / "mask" / MASK
        size = path.stat().st_size
        begin = time.perf_counter()
        file = MaskFile.read(path)
        for name in file.bits:
            file.mask(name)
        seconds = time.perf_counter() - begin
    beside = {
        "mask": round(size / 1e6, 2),
        "LoRA on q and v, float32": round(adapter_bytes(anatomy, ("query", "value"), 4) / 1e6, 2),
        "LoRA on q and v, bfloat16": round(adapter_bytes(anatomy, ("query", "value"), 2) / 1e6, 2),
        "LoRA on all linear layers, float32": round(adapter_bytes(anatomy, None, 4) / 1e6, 2),
    }
    keep("mask_file", arguments, {"codes": coded, "beside": beside, "reading": {"milliseconds": round(1000 * seconds)}})


if __name__ == "__main__":
    main()
