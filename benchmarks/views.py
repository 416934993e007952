"""What views cost: forward and backward of MiniLM under each view, as a ratio to the plain model; nested FFN widths."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import AutoModel

from harness import in_turn, keep, options
from slimformer import Anatomy, models
from slimformer.views import MaskView, QuantizedView, attach, attached, bake, slice_neurons, uniform_scores

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from slimformer.anatomy import Matrix
    from slimformer.views import View


def viewed(plain: nn.Module, make: Callable[[Matrix], View]) -> nn.Module:
    """A copy of the model with a view on every matrix of its blocks."""
    model = copy.deepcopy(plain)
    for block in Anatomy.of(model).blocks:
        for matrix in block.matrices.values():
            attach(matrix, make(matrix))
    return model


def nested(plain: nn.Module, neurons: int) -> nn.Module:
    """A copy of the model with nested feed-forward layers at the width given."""
    model = copy.deepcopy(plain)
    for block in Anatomy.of(model).blocks:
        slice_neurons(block).set(neurons)
    return model


def main() -> None:
    """Measure on MiniLM."""
    arguments = options(__doc__).parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    plain = AutoModel.from_pretrained(models.resolve("minilm"))
    batch, length = (2, 8) if arguments.tiny else (32, 32)
    inputs = {"input_ids": torch.randint(1000, 30000, (batch, length)), "attention_mask": torch.ones(batch, length)}

    def step(model: nn.Module) -> None:
        model.zero_grad()
        model(**inputs).last_hidden_state.square().mean().backward()

    @torch.no_grad()
    def forward(model: nn.Module) -> None:
        model(**inputs)

    masked = viewed(plain, lambda matrix: MaskView(uniform_scores(matrix.shape, 0.05)))
    for at in attached(masked):
        at.original.requires_grad_(False)
    runs = {
        "step, plain": partial(step, plain),
        "step, ternary": partial(step, viewed(plain, lambda _: QuantizedView("ternary", "matrix"))),
        "step, mask": partial(step, masked),
        "forward, plain": partial(forward, plain),
    }
    for share in (1, 2, 4, 8):
        model = nested(plain, 1536 // share)
        runs[f"forward, nested at 1/{share} of the neurons"] = partial(forward, model)
        runs[f"forward, extracted at 1/{share} of the neurons"] = partial(forward, bake(copy.deepcopy(model)))
    seconds = in_turn(runs, rounds=1 if arguments.tiny else 15, warm_up=0 if arguments.tiny else 3)
    ratios = {name: round(value / seconds[f"{name.partition(',')[0]}, plain"], 3) for name, value in seconds.items()}
    keep(
        "views",
        arguments,
        {"batch": batch, "length": length, "median_seconds": seconds, "ratio_to_plain": ratios},
    )


if __name__ == "__main__":
    main()
