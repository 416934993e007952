"""Scores of tokens as `generate` would have them: its processors applied to every place of every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation import logits_process as processing

from slimformer.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.sizes.decoding.rows import Rows

#: Processors that look at the scores alone: all places of all rows go through them at once.
BLIND = (
    processing.TemperatureLogitsWarper,
    processing.TopKLogitsWarper,
    processing.TopPLogitsWarper,
    processing.MinPLogitsWarper,
    processing.TypicalLogitsWarper,
    processing.EpsilonLogitsWarper,
    processing.EtaLogitsWarper,
    processing.InfNanRemoveLogitsProcessor,
    processing.LogitNormalization,
    processing.SuppressTokensLogitsProcessor,
)
#: Processors that run the model themselves, count their calls, or ask for the number of a row.
REFUSED = (
    processing.PrefixConstrainedLogitsProcessor,
    processing.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    processing.EncoderNoRepeatNGramLogitsProcessor,
    processing.EncoderRepetitionPenaltyLogitsProcessor,
    processing.SynthIDTextWatermarkLogitsProcessor,
)


@dataclass(frozen=True)
class Scoring:
    """How scores come from logits.

    Args:
        processors: As `generate` prepares them. Others than those known here see one row at a time.
        sample: Whether tokens are drawn rather than the best taken.
    """

    processors: Any  # `LogitsProcessorList`, which insists on types that no operation returns
    sample: bool

    def __post_init__(self) -> None:
        for each in self.processors:
            if isinstance(each, REFUSED):
                raise ConfigError(
                    f"a draft cannot be verified under a `{type(each).__name__}`; leave its setting out, or the draft"
                )

    def __call__(self, logits: Tensor, rows: Rows, offset: int) -> Tensor:
        """The scores, [batch, n, vocabulary], of n places of each row.

        Args:
            logits: [batch, n, vocabulary].
            rows: The texts so far, with what is drafted.
            offset: Columns from the end of each row to the first place.
        """
        logits = logits.float()
        if not self.processors:
            return logits
        batch, places, _ = logits.shape
        if all(type(each) in BLIND for each in self.processors):
            text = rows.tokens[:1, :1].expand(batch * places, 1)
            scores: Tensor = self.processors(text, logits.flatten(0, 1)).unflatten(0, (batch, places))
            return scores
        lengths = (rows.lengths + offset).tolist()
        return torch.stack(
            [
                torch.cat(
                    [
                        self.processors(rows.tokens[row : row + 1, : length + place], logits[row, place : place + 1])
                        for place in range(places)
                    ]
                )
                for row, length in enumerate(lengths)
            ]
        )
