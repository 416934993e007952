"""What is hidden of an item, tokens of a text or patches of an image: the same for the same (seed, epoch, index)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slimformer.errors import ConfigError
from slimformer.models import IGNORED

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.features import Inputs

Masking = Literal["bert", "mask", "words"]
#: How tokens of WordPiece begin that go on with a word, and how those of others begin that start one.
CONTINUES, STARTS = "##", ("Ġ", "▁")


@dataclass(frozen=True)
class TokenMasking:
    """Which tokens of a text are predicted, and what stands there instead.

    Args:
        mask: Number of the mask token.
        vocabulary: How many tokens there are.
        special: Numbers of tokens that are never masked.
        seed: The run's seed.
        share: Part of the tokens that is predicted; at least one token of an item is.
        way: `bert`: of the tokens that are predicted 80 % are masked, 10 % random, 10 % kept (arXiv 1810.04805);
            `mask`: all are masked; `words`: whole words are masked, all tokens of each.
        continues: Of each token, whether it goes on with the word before it; for `words`.
    """

    mask: int
    vocabulary: int
    special: tuple[int, ...]
    seed: int
    share: float = 0.15
    way: Masking = "bert"
    continues: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, seed: int, share: float = 0.15, way: Masking = "bert"
    ) -> TokenMasking:
        """The masking for a tokenizer."""
        assert isinstance(tokenizer.mask_token_id, int)
        special = tuple(sorted(set(tokenizer.all_special_ids)))
        continues = continuing_tokens(tokenizer) if way == "words" else None
        return cls(tokenizer.mask_token_id, len(tokenizer), special, seed, share, way, continues)

    def __call__(self, inputs: Inputs, index: int, epoch: int) -> Inputs:
        """Mask one item."""
        draw = np.random.default_rng([self.seed, epoch, index])
        ids: np.ndarray[Any, np.dtype[np.int32]] = inputs["input_ids"]
        chances, actions = draw.random(len(ids)), draw.random(len(ids))
        if self.continues is not None:
            chances = chances[word_starts(ids, self.continues, self.special)]
        chances[np.isin(ids, self.special)] = 2.0
        chosen = chances < self.share
        if not chosen.any() and chances.min() < 1:
            chosen |= chances == chances.min()  # one token, or all of one word
        masked = ids.copy()
        if self.way == "bert":
            masked[chosen & (actions < 0.8)] = self.mask
            replaced = chosen & (actions >= 0.9)
            masked[replaced] = draw.integers(self.vocabulary, size=int(replaced.sum()))
        else:
            masked[chosen] = self.mask
        return {**inputs, "input_ids": masked, "labels": np.where(chosen, ids, IGNORED).astype(np.int32)}


@dataclass(frozen=True)
class WordDeletion:
    """Which words are left of a text, whose other words are deleted, as TSDAE does (arXiv 2104.06979).

    Args:
        special: Numbers of tokens that are never deleted.
        seed: The run's seed.
        continues: Of each token, whether it goes on with the word before it.
        share: How likely each word is deleted; one of them stays whatever is drawn.
    """

    special: tuple[int, ...]
    seed: int
    continues: NDArray[np.bool_] = field(compare=False, repr=False)
    share: float = 0.6

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, seed: int, share: float = 0.6) -> WordDeletion:
        """The deletion for a tokenizer; where its tokens do not tell where a word starts, each is a word."""
        try:
            continues = continuing_tokens(tokenizer)
        except ConfigError:
            continues = np.zeros(max(tokenizer.get_vocab().values()) + 1, bool)
        return cls(tuple(sorted(set(tokenizer.all_special_ids))), seed, continues, share)

    def __call__(self, inputs: Inputs, index: int, epoch: int) -> Inputs:
        """Delete words of one item; its labels are the whole text."""
        draw = np.random.default_rng([self.seed, epoch, index])
        ids: NDArray[np.int32] = inputs["input_ids"]
        chances = draw.random(len(ids))[word_starts(ids, self.continues, self.special)]
        special = np.isin(ids, self.special)
        kept = chances >= self.share
        if not kept[~special].any() and not special.all():
            kept |= chances == chances[~special].max()  # all tokens of one word
        kept |= special
        return {**inputs, "input_ids": ids[kept], "attention_mask": inputs["attention_mask"][kept], "labels": ids}


def word_starts(ids: NDArray[np.int32], continues: NDArray[np.bool_], special: tuple[int, ...]) -> NDArray[np.int64]:
    """The position at which the word of each token starts; after a special token a word starts anew.

    Args:
        ids: The tokens of a text.
        continues: Of each token there is, whether it goes on with the word before it.
        special: Numbers of tokens that belong to no word.
    """
    apart = np.isin(ids, special)
    starts = ~continues[ids] | apart
    starts[1:] |= apart[:-1]
    starts[:1] = True
    return np.maximum.accumulate(np.where(starts, np.arange(len(ids)), 0))


def continuing_tokens(tokenizer: PreTrainedTokenizerBase) -> NDArray[np.bool_]:
    """Of each token, whether it goes on with the word before it, as its spelling tells."""
    vocabulary = tokenizer.get_vocab()
    continues = np.zeros(max(vocabulary.values()) + 1, bool)
    pieces = any(token.startswith(CONTINUES) and len(token) > len(CONTINUES) for token in vocabulary)
    mark = next((mark for mark in STARTS if any(token.startswith(mark) for token in vocabulary)), None)
    if not pieces and mark is None:
        raise ConfigError("the tokenizer does not tell where a word starts; mask tokens instead of `words`")
    for token, number in vocabulary.items():
        if pieces:
            continues[number] = token.startswith(CONTINUES)
        else:
            # A sign in front of nothing, such as a comma, is a word of its own.
            continues[number] = not token.startswith(STARTS) and any(map(str.isalnum, token))
    return continues


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
