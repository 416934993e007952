"""Bytes and speed of what each method leaves behind for one task of MiniLM; what is reached is measured elsewhere.

Neither depends on how long was trained, so every method takes one step. The forwards of 32 texts of 32 tokens take
turns.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from harness import in_turn, keep, options
from slimformer import distill, finetune, load, mask, quantize, trim

if TYPE_CHECKING:
    from torch import nn

STEP = {"max_steps": 1, "batch_size": 2, "max_length": 16, "quiet": True}
SHAPE = {"layers": 3, "hidden": 192, "heads": 12}
#: Half of all feed-forward neurons and heads; two steps, so that the sparsity can rise from the initial one.
HALF: dict[str, Any] = {"structured": "both", "sparsity": 0.5, "blocks": "0-", "max_steps": 2}
#: The pieces that cover 99.95 % of the words of SST-2, see `trim.json`.
KEPT = 11_310


def make_all(scratch: Path) -> dict[str, Path]:
    """An artifact of each method, by its name."""
    reviews = scratch / "reviews"
    reviews.mkdir()
    rows = "text,label\na lovely film,good\na dull plot,bad\n"
    for split in ("train", "dev"):
        (reviews / f"{split}.csv").write_text(rows)
    (scratch / "texts.txt").write_text("It was a dark and stormy night; the rain fell in torrents.\n" * 20)
    task = {"task": "classification", "data": str(reviews), **STEP}
    out = {
        name: scratch / name for name in ("finetune", "student", "distill", "mask", "half", "quantize", "small", "trim")
    }
    finetune(model="minilm", out=str(out["finetune"]), **task)
    distill(teacher="minilm", corpus=[str(scratch / "texts.txt")], out=str(out["student"]), **SHAPE, **STEP)
    finetune(model=str(out["student"]), out=str(out["distill"]), **task)
    mask(model="minilm", out=str(out["mask"]), **task)
    mask(model="minilm", out=str(out["half"]), **{**task, **HALF})
    quantize(model=str(out["finetune"]), out=str(out["quantize"]), **task)
    quantize(model=str(out["finetune"]), out=str(out["small"]), packing="small", **task)
    trim(model=str(out["finetune"]), corpus=str(scratch / "texts.txt"), keep=KEPT, out=str(out["trim"]), quiet=True)
    return {
        "finetune": out["finetune"],
        "distill": out["distill"],
        "mask": out["mask"],
        "mask, structured": out["half"],
        "quantize": out["quantize"],
        "quantize, small": out["small"],
        "trim": out["trim"],
    }


def main() -> None:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    batch, length, rounds = (2, 8, 1) if arguments.tiny else (32, 32, arguments.rounds)
    ids = torch.randint(1000, KEPT, (batch, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    @torch.inference_mode()
    def forward(model: nn.Module) -> None:
        model(**inputs)

    with tempfile.TemporaryDirectory() as scratch:
        folders = make_all(Path(scratch))
        stored = {name: sum(file.stat().st_size for file in of.glob("*.safetensors")) for name, of in folders.items()}
        models = {name: load(folder).model.eval() for name, folder in folders.items()}
        seconds = in_turn({name: partial(forward, model) for name, model in models.items()}, rounds)
    keep(
        "method_cost",
        arguments,
        {
            "batch": batch,
            "length": length,
            "bytes": stored,
            "parameters": {name: sum(each.numel() for each in model.parameters()) for name, model in models.items()},
            "median_seconds": seconds,
            "speed": {name: round(seconds["finetune"] / value, 2) for name, value in seconds.items()},
        },
    )


if __name__ == "__main__":
    main()
