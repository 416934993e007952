"""Language models compared on the same tokens: the loss of each block of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from torch import Tensor

#: Blocks of text in one forward.
BATCH = 16


def cut_blocks(texts: list[str], tokenizer: Any, length: int, tokens: int) -> Tensor:
    """The first tokens of some documents, each ended by the tokenizer's end, in blocks: [blocks, length]."""
    stream: list[int] = []
    for text in texts:
        if len(stream) >= tokens:
            break
        stream += [*tokenizer(text, verbose=False)["input_ids"], tokenizer.eos_token_id]
    count = min(tokens, len(stream)) // length
    return torch.tensor(stream[: count * length]).view(count, length)


@torch.inference_mode()
def logits_of(model: Any, blocks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What a model says of each token but the first, and the tokens: [batch, length - 1, vocabulary], [batch, …]."""
    model.eval()
    for batch in blocks.split(BATCH):
        yield model(input_ids=batch).logits[:, :-1], batch[:, 1:]


def losses(model: Any, blocks: Tensor) -> np.ndarray[Any, Any]:
    """Mean loss of each block, in nats a token."""
    parts = [
        functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens).mean(1)
        for logits, tokens in logits_of(model, blocks)
    ]
    return torch.cat(parts).double().numpy()
