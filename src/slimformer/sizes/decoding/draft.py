"""How a smaller size drafts, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slimformer.sizes.naming import Sized


@dataclass(frozen=True)
class Draft:
    """A smaller size that writes ahead; the size in use verifies, and the output is its own.

    Args:
        size: The size or allocation that drafts.
        length: Tokens that are drafted before each verification; chosen step by step from what was accepted so far,
            if none is given.
        longest: Tokens that are drafted at most where the length is chosen.
        cost: Time to draft one token and verify it with others, in forwards of the verifying size over one token. By
            this and the next, what pays is chosen; the defaults are those of SmolLM2 on a CPU.
        verification: Time of a verification beside that, in the same unit: matrices are slower than vectors.
        shortlist: Ids of the tokens that may be drafted; all, if none are given. The output is the same with any, but
            drafting computes no other logits.
    """

    size: Sized
    length: int | None = None
    longest: int = 8
    cost: float = 0.5
    verification: float = 1.5
    shortlist: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name, count in (("length", self.length), ("longest", self.longest)):
            if count is not None and count < 1:
                raise ConfigError(f"the draft's `{name}` is {count}; draft at least one token")
        for name, value in (("cost", self.cost), ("verification", self.verification)):
            if not value > 0:
                raise ConfigError(f"the draft's `{name}` is {value}; it takes more than 0 forwards")
        if self.shortlist is not None and not len(self.shortlist):
            raise ConfigError("the draft's `shortlist` is empty; name the tokens that may be drafted, or leave it out")

    @classmethod
    def of(cls, draft: Draft | Sized) -> Draft:
        """A size alone drafts by the defaults."""
        return draft if isinstance(draft, Draft) else cls(draft)


@dataclass(frozen=True)
class DraftStatistics:
    """What drafting did in one run of `generate`.

    Args:
        drafted: Tokens that were drafted where they could still be used.
        accepted: Those of them that the verifying size accepted.
        draft_calls: Forwards of the drafting size.
        verify_calls: Forwards of the verifying size, that of the prompt included.
        generated: Tokens that were written, over all rows.
        cache_bytes: Bytes of the one cache at its largest.
    """

    drafted: int = 0
    accepted: int = 0
    draft_calls: int = 0
    verify_calls: int = 0
    generated: int = 0
    cache_bytes: int = 0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were accepted; 0 where none were drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def plus(self, **counts: int) -> DraftStatistics:
        """The same with more of something."""
        return DraftStatistics(**{name: value + counts.get(name, 0) for name, value in vars(self).items()})


def shortlist_ids(shortlist: Sequence[int], vocabulary: int) -> list[int]:
    """The tokens of a shortlist, rising; those of a model with so many."""
    ids = sorted({int(token) for token in shortlist})
    if ids[0] < 0 or ids[-1] >= vocabulary:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise ConfigError(f"the shortlist names token {wrong}, and the model has {vocabulary}; leave it out")
    return ids


def frequent_tokens(texts: Iterable[Any], count: int) -> list[int]:
    """The ids that stand most often in tokenized texts, rising: a shortlist for drafting.

    Args:
        texts: Sequences of ids, such as `tokenizer(texts)["input_ids"]`.
        count: Ids that are kept at most.
    """
    from collections import Counter

    counts = Counter(int(token) for text in texts for token in text)
    return sorted(token for token, _ in counts.most_common(count))
