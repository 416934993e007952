"""Elastic decoders and prompts for tests of decoding."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from slimformer.sizes import make_elastic
from tests import zoo

#: Settings of a greedy run in which rows may end early.
GREEDY: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, "eos_token_id": [7, 11]}
#: Below this difference of XL's two best logits, the order of a sum decides which is larger.
TIE = 1e-4


def decoder(family: str = "llama", seed: int = 0, **settings: Any) -> Any:
    """A small decoder with a head, of random weights."""
    config = zoo.CONFIGS[family]()
    for name, value in settings.items():
        setattr(config, name, value)
    config.bos_token_id = config.eos_token_id = None
    torch.manual_seed(seed)
    return zoo.enliven(hf.AutoModelForCausalLM.from_config(config)).eval()


def elastic_decoder(family: str = "llama", seed: int = 0, **settings: Any) -> Any:
    """The same with three sizes."""
    model = decoder(family, seed, **settings)
    make_elastic(model, [0.25, 0.5, 1])
    return model


def prompts(batch: int, length: int = 9) -> dict[str, torch.Tensor]:
    """Prompts of different lengths, padded on the left."""
    inputs = zoo.inputs_for("llama", padding="left", batch=batch, length=length)
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def mismatches(model: Any, inputs: dict[str, torch.Tensor], actual: torch.Tensor, expected: torch.Tensor) -> list[int]:
    """Rows that differ where the model's two best logits do: what comes after a tie may be anything."""
    columns = max(actual.shape[1], expected.shape[1])
    actual, expected = (torch.nn.functional.pad(each, (0, columns - each.shape[1])) for each in (actual, expected))
    rows = []
    for row in (actual != expected).any(dim=1).nonzero().flatten().tolist():
        first = int((actual[row] != expected[row]).nonzero()[0])
        kept = inputs["attention_mask"][row].bool()
        text = torch.cat([inputs["input_ids"][row][kept], expected[row, len(kept) : first]])
        with torch.no_grad():
            best = model(input_ids=text[None]).logits[0, -1].topk(2).values
        if best[0] - best[1] > TIE:
            rows.append(row)
    return rows
