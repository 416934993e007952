"""What taps cost: hooks on a full forward, and stopping a forward after block k, as shares of the plain forward."""

from __future__ import annotations

import torch
from transformers import AutoModel

from harness import in_turn, keep, options
from slimformer import Anatomy, Taps, models, run_until


def main() -> None:
    """Measure on MiniLM."""
    arguments = options(__doc__).parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    model = AutoModel.from_pretrained(models.resolve("minilm")).eval()
    batch, length = (2, 8) if arguments.tiny else (16, 128)
    inputs = {"input_ids": torch.randint(1000, 30000, (batch, length)), "attention_mask": torch.ones(batch, length)}

    def tapped(*record: str):
        def run() -> None:
            with Taps(model, record=record) as taps:
                model(**inputs)
                if "map" in record:
                    _ = [taps[layer].map for layer in taps.layers]

        return run

    blocks = len(Anatomy.of(model).blocks)
    runs = {
        "plain forward": lambda: model(**inputs),
        "all q, k, v tapped": tapped("q", "k", "v"),
        "all maps recomputed": tapped("map"),
        **{
            f"run_until({layer}) for q, k, v": lambda layer=layer: run_until(model, layer, inputs, ("q", "k", "v"))
            for layer in range(blocks)
        },
    }
    with torch.no_grad():
        seconds = in_turn(runs, rounds=1 if arguments.tiny else 15, warm_up=0 if arguments.tiny else 3)
    plain = seconds["plain forward"]
    keep(
        "taps",
        arguments,
        {
            "batch": batch,
            "length": length,
            "median_seconds": seconds,
            "share_of_plain_forward": {name: round(value / plain, 3) for name, value in seconds.items()},
        },
    )


if __name__ == "__main__":
    main()
