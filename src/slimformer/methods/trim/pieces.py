"""Which pieces a domain uses, which of them stay, and what that does to its texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.corpus.examples import Encoder
from slimformer.errors import ConfigError, DataError
from slimformer.methods.trim.vocabulary import close_pieces, open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.methods.trim.vocabulary import Vocabulary


def count_pieces(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> NDArray[np.int64]:
    """How often each piece occurs in texts, by its id; special tokens around a text are not counted.

    Needs memory for one batch of texts, however many there are.

    Args:
        tokenizer: A fast tokenizer.
        documents: The texts, such as `open_corpus(...).documents()`.
    """
    counts = np.zeros(1 + max(tokenizer.get_vocab().values()), np.int64)
    waiting: list[int] = []
    for ids, _ in Encoder(tokenizer).encode(documents):
        waiting += ids
        if len(waiting) >= len(counts):
            counts += np.bincount(waiting, minlength=len(counts))
            waiting = []
    return counts + np.bincount(np.array(waiting, np.int64), minlength=len(counts))


def pieces_of(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> set[int]:
    """Ids of the pieces of some texts, to be kept whatever the corpus says."""
    return {piece_id for ids, _ in Encoder(tokenizer).encode(texts) for piece_id in ids}


def choose_pieces(
    tokenizer: PreTrainedTokenizerBase,
    counts: NDArray[np.int64],
    *,
    keep: int | None = None,
    coverage: float | None = None,
    always: Collection[int] = (),
) -> list[int]:
    """Ids of the pieces that stay, rising.

    Special and added tokens, bytes, ASCII characters and the characters of the corpus always stay, so that whatever the
    corpus holds can still be written. Then the pieces come in the order of how often they occur (of those that occur as
    often, the lower id first), each with the pieces it is built from, until there are `keep` of them, or until those
    kept make up the share `coverage` of all tokens counted.

    Args:
        tokenizer: A fast tokenizer.
        counts: Of `count_pieces`.
        keep: How many pieces to keep at most; a piece for which there is no room with its parts ends the choice.
        coverage: The share of the corpus's tokens to keep; either this or `keep`.
        always: Pieces that stay besides.
    """
    if (keep is None) == (coverage is None):
        raise ConfigError(f"`keep` is {keep} and `coverage` is {coverage}; give one of them")
    vocabulary = open_vocabulary(tokenizer)
    total = int(counts.sum())
    if total == 0:
        raise DataError("the corpus gives no token, so no piece is more frequent than another; give text of the domain")
    kept = close_pieces(vocabulary, {*vocabulary.required(), *tokenizer.all_special_ids, *always})
    for piece_id in np.flatnonzero(counts).tolist():
        kept |= vocabulary.characters(piece_id)
    if keep is not None and len(kept) > keep:
        raise ConfigError(
            f"`keep` is {keep}, but {len(kept)} pieces always stay: special tokens, bytes and characters; "
            f"give {len(kept)} or more"
        )
    order = np.argsort(-counts, kind="stable").tolist()
    if keep is not None:
        return sorted(_fill(vocabulary, kept, order, keep))
    return sorted(_cover(vocabulary, kept, order, counts, (coverage or 0) * total))


def _fill(vocabulary: Vocabulary, kept: set[int], order: list[int], room: int) -> set[int]:
    """Add pieces in order as long as there is room."""
    for piece_id in order:
        if piece_id in vocabulary.pieces and piece_id not in kept:
            more = close_pieces(vocabulary, {piece_id}) - kept
            if len(kept) + len(more) > room:
                break
            kept |= more
    return kept


def _cover(
    vocabulary: Vocabulary, kept: set[int], order: list[int], counts: NDArray[np.int64], enough: float
) -> set[int]:
    """Add pieces in order until enough of the tokens are kept."""
    covered = int(counts[sorted(kept)].sum())
    for piece_id in order:
        if covered >= enough:
            break
        if piece_id not in kept:
            more = close_pieces(vocabulary, {piece_id}) - kept
            covered += int(counts[sorted(more)].sum())
            kept |= more
    return kept


@dataclass(frozen=True)
class TextCoverage:
    """What a smaller vocabulary does to texts.

    Attributes:
        texts: How many there are.
        same: How many of them are split as before.
        tokens: Tokens before.
        kept: Tokens before whose piece is kept.
        tokens_after: Tokens with the smaller vocabulary; more, where a piece falls into smaller ones.
        unknown: Tokens before that are unknown.
        unknown_after: Tokens that are unknown to the smaller vocabulary.
    """

    texts: int
    same: int
    tokens: int
    kept: int
    tokens_after: int
    unknown: int
    unknown_after: int


def compare_tokenizers(
    tokenizer: PreTrainedTokenizerBase,
    trimmed: PreTrainedTokenizerBase,
    ids: Sequence[int],
    documents: Iterable[str],
) -> TextCoverage:
    """Split texts with both tokenizers and count what stays the same.

    Args:
        tokenizer: The tokenizer before.
        trimmed: Of `trim_tokenizer`.
        ids: The pieces that were kept.
        documents: The texts; other ones than those the pieces were chosen on tell more.
    """
    original = np.asarray(ids)
    kept = np.zeros(1 + max(tokenizer.get_vocab().values()), bool)
    kept[original] = True
    unknown: Any = tokenizer.unk_token_id
    sums = np.zeros(7, np.int64)
    same = True
    before, after = tee(documents)
    # Both encoders cut and batch texts alike, so that neither runs ahead of the other by more than a batch.
    pairs = zip(Encoder(tokenizer).encode(before), Encoder(trimmed).encode(after), strict=True)
    for (old, ends), (new, _) in pairs:
        mapped = original[new] if new else original[:0]
        same = same and np.array_equal(mapped, old)
        lost = (old.count(unknown), int((mapped == unknown).sum())) if unknown is not None else (0, 0)
        sums += (ends, ends and same, len(old), int(kept[old].sum()) if old else 0, len(new), *lost)
        same = same or ends
    return TextCoverage(*sums.tolist())


@dataclass(frozen=True)
class TrimReport:
    """What trimming did.

    Attributes:
        pieces_before: Rows of the embedding before.
        pieces_after: Rows of the embedding now.
        bytes_before: Bytes of the weights before.
        bytes_after: Bytes of the weights now.
        coverage: Share of the corpus's tokens whose piece is kept.
        texts_same: Share of the corpus's texts that are split as before.
        longer: Tokens of the corpus now, over tokens before.
        unknown: Share of the corpus's tokens that are unknown now.
    """

    pieces_before: int
    pieces_after: int
    bytes_before: int
    bytes_after: int
    coverage: float
    texts_same: float
    longer: float
    unknown: float

    @classmethod
    def of(cls, texts: TextCoverage, pieces: tuple[int, int], weights: tuple[int, int]) -> TrimReport:
        """Make one from what was counted.

        Args:
            texts: Of `compare_tokenizers`.
            pieces: Rows of the embedding before and after.
            weights: Bytes of the weights before and after.
        """
        return cls(
            *pieces,
            *weights,
            coverage=texts.kept / max(texts.tokens, 1),
            texts_same=texts.same / max(texts.texts, 1),
            longer=texts.tokens_after / max(texts.tokens, 1),
            unknown=texts.unknown_after / max(texts.tokens_after, 1),
        )

    def summary(self) -> dict[str, Any]:
        """Plain values, for JSON and the manifest."""
        return asdict(self)
