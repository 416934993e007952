"""What is hidden of an item, tokens of a text or patches of an image: the same for the same (seed, epoch, index)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.models import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.features import Inputs


@dataclass(frozen=True)
class TokenMasking:
    """BERT's masking: 15 % of the tokens are predicted; of these 80 % masked, 10 % random, 10 % kept.

    Args:
        mask: Number of the mask token.
        vocabulary: How many tokens there are.
        special: Numbers of tokens that are never masked.
        seed: The run's seed.
        share: Part of the tokens that is predicted; at least one token of an item is.
    """

    mask: int
    vocabulary: int
    special: tuple[int, ...]
    seed: int
    share: float = 0.15

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, seed: int) -> TokenMasking:
        """The masking for a tokenizer."""
        assert isinstance(tokenizer.mask_token_id, int)
        return cls(tokenizer.mask_token_id, len(tokenizer), tuple(sorted(set(tokenizer.all_special_ids))), seed)

    def __call__(self, inputs: Inputs, index: int, epoch: int) -> Inputs:
        """Mask one item."""
        draw = np.random.default_rng([self.seed, epoch, index])
        ids: np.ndarray[Any, np.dtype[np.int32]] = inputs["input_ids"]
        chances, actions = draw.random(len(ids)), draw.random(len(ids))
        chances[np.isin(ids, self.special)] = 2.0
        chosen = chances < self.share
        if not chosen.any() and chances.min() < 1:
            chosen[chances.argmin()] = True
        masked = ids.copy()
        masked[chosen & (actions < 0.8)] = self.mask
        replaced = chosen & (actions >= 0.9)
        masked[replaced] = draw.integers(self.vocabulary, size=int(replaced.sum()))
        return {**inputs, "input_ids": masked, "labels": np.where(chosen, ids, IGNORED).astype(np.int32)}


@dataclass(frozen=True)
class PatchMasking:
    """The order in which a masked autoencoder keeps the patches of an image (arXiv 2111.06377).

    Transformers keeps those with the smallest `noise`. Its values are a permutation, so that no two are equal and every
    machine sorts them alike; how many are kept is for the model to say.

    Args:
        patches: How many an image has.
        seed: The run's seed.
    """

    patches: int
    seed: int

    def __call__(self, inputs: Inputs, index: int, epoch: int) -> Inputs:
        """Say what of one item is hidden."""
        draw = np.random.default_rng([self.seed, epoch, index])
        return {**inputs, "noise": draw.permutation(self.patches).astype(np.float32) / self.patches}
