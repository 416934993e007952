"""What an objective compares of teacher and student, taken from one forward of each.

Scores are those the attention computes with anyway; only where a family attends in its own way are they made again
from its queries and keys.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.anatomy import Anatomy
from slimformer.taps import Taps
from slimformer.views.attention import Scores, goes_through_registry, kept_scores, use_attention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from slimformer.taps import BlockRecord, Name

#: Term of the loss → what has to be recorded for it.
RECORDS: dict[str, Name] = {"output": "attention_output", "mha": "mha", "map": "scores", "score": "scores"}


@dataclass(frozen=True)
class Seen:
    """What one forward computed: the model's outputs, and the tapped blocks in order."""

    outputs: Any
    embeddings: Tensor | None
    blocks: list[BlockRecord]
    scores: list[Scores]


class Recorder:
    """Runs a model and keeps what is asked for.

    Args:
        model: The model without wrappers; from now on it attends by our implementation, if its family can.
        layers: Blocks to look at.
        terms: Terms of the loss that need records.
        hidden: Whether outputs of blocks and embeddings are wanted.
    """

    def __init__(self, model: nn.Module, layers: Iterable[int], terms: Iterable[str], hidden: bool = True) -> None:
        self.layers = tuple(layers)
        wanted: set[Name] = {RECORDS[term] for term in terms}
        registry = goes_through_registry(Anatomy.of(model).blocks[0])
        self.model = model
        self.keeps_scores = "scores" in wanted and registry
        self.makes_scores = "scores" in wanted and not registry
        if self.keeps_scores:
            use_attention(model)
            wanted.discard("scores")
        if hidden:
            wanted.add("output")
        self.hidden = hidden
        self.names = frozenset(wanted)

    def __call__(self, call: nn.Module, inputs: dict[str, Any]) -> Seen:
        """Run `call`, which is the model or a wrapper around it."""
        kept: dict[int, Scores] = {}
        with ExitStack() as stack:
            if self.keeps_scores:
                kept = stack.enter_context(kept_scores(self.model, self.layers))
            # New taps for each forward: what they hold is gone with the result.
            taps = stack.enter_context(
                Taps(self.model, self.layers if self.names else (), self.names, embeddings=self.hidden)
            )
            outputs = call(**inputs)
            if self.makes_scores:
                kept = {layer: Scores(taps[layer].scores, taps[layer].mask) for layer in self.layers}
            blocks = [taps[layer] for layer in taps.layers]
            embeddings = taps.embeddings if self.hidden else None
        return Seen(outputs, embeddings, blocks, [kept[layer] for layer in self.layers] if kept else [])
