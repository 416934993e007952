"""Generating on caches: token by token, or drafted by a smaller size and verified (arXiv 2211.17192, 2310.07707).

The drafting size reads the keys and values of the verifying size and adds its own for what it drafts; these are
cropped, and verifying writes its own in their place. Each sequence keeps as many tokens as were right in it, and has
a length of drafts of its own: so it is answered as it would be alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from slimformer.sizes.decoding.draft import DraftStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from slimformer.runtime.decoding.choosing import Chooser
    from slimformer.runtime.onnx import Array
    from slimformer.sizes.decoding.draft import Draft
    from slimformer.sizes.decoding.length import DraftLength


@dataclass(frozen=True)
class Generated:
    """What was generated.

    Args:
        tokens: The new tokens of each prompt.
        statistics: What drafting did.
    """

    tokens: list[list[int]]
    statistics: DraftStatistics


@dataclass(frozen=True)
class Drafting:
    """How a smaller size drafts.

    Args:
        draft: What was asked for.
        run: Logits after new tokens of some caches, at that size.
        ids: Tokens that the logits are of, where there is a shortlist.
        vocabulary: Tokens that there are.
    """

    draft: Draft
    run: Callable[[list[list[int]], list[Any]], Array]
    ids: Array | None
    vocabulary: int


@dataclass
class Text:
    """A sequence while it is written.

    Args:
        unread: Tokens at its end that are not in the cache.
        cache: Keys and values of those before.
        chooser: Chooses its tokens.
        limit: Tokens that are added at most.
        length: Chooses how many tokens to draft; None where none are.
    """

    unread: list[int]
    cache: Any
    chooser: Chooser
    limit: int
    length: DraftLength | None
    added: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    proposed: list[Array | None] = field(default_factory=list)

    def plan(self) -> int:
        """Tokens to draft now; the last one that fits comes from the verification itself."""
        if self.length is None or not self.added:
            return 0
        return min(self.length.next(), self.limit - len(self.added) - 1)

    def extend(self, logits: Array, stop: Collection[int]) -> tuple[int, bool]:
        """Keep what is right of the draft and the token after it.

        Args:
            logits: After what was unread and each drafted token, [drafted + 1, vocabulary].
            stop: Tokens that end a text.

        Returns:
            How many drafted tokens were right, and whether the text goes on.
        """
        count = len(self.drafted)
        accepted, following = self.chooser.verify(self.drafted, self.proposed, logits)
        if count:
            self.cache.crop(self.cache.length - (count - accepted))
            if self.length is not None:
                self.length.observe(accepted, accepted + (accepted < count))
        new = [*self.drafted[:accepted], following]
        end = next((at for at, token in enumerate(new) if token in stop), len(new))
        self.added += new[:end]
        self.unread, self.drafted, self.proposed = [following], [], []
        return accepted, end == len(new) and len(self.added) < self.limit


def generate(
    run: Callable[[list[list[int]], list[Any], bool], Array],
    texts: Sequence[Text],
    stop: Collection[int],
    drafting: Drafting | None = None,
) -> Generated:
    """Write until every text has ended.

    Args:
        run: Logits of the verifying size after new tokens of some caches: of all of them, or of the last ones.
        texts: What to go on with.
        stop: Tokens that end a text, which are not part of it.
        drafting: How a smaller size drafts, if one does.
    """
    statistics, going = DraftStatistics(), list(texts)
    while going:
        drafts = 0 if drafting is None else _draft(drafting, going)
        counts = [len(text.drafted) for text in going]
        logits = run([[*text.unread, *text.drafted] for text in going], [text.cache for text in going], any(counts))
        largest = sum(text.cache.bytes for text in texts)
        ends = list(accumulate((count + 1 for count in counts), initial=0))
        before = [len(text.added) for text in going]
        results = [
            text.extend(logits[first:end], stop) for text, (first, end) in zip(going, pairwise(ends), strict=True)
        ]
        statistics = statistics.plus(
            drafted=sum(counts),
            accepted=sum(accepted for accepted, _ in results),
            draft_calls=drafts,
            verify_calls=1,
            generated=sum(len(text.added) - length for text, length in zip(going, before, strict=True)),
            cache_bytes=max(0, largest - statistics.cache_bytes),
        )
        going = [text for text, (_, goes_on) in zip(going, results, strict=True) if goes_on]
    return Generated([text.added for text in texts], statistics)


def _draft(drafting: Drafting, texts: Sequence[Text]) -> int:
    """Let the smaller size write after the end of each text; return how often it ran."""
    counts = [text.plan() for text in texts]
    lengths = [text.cache.length for text in texts]
    for number in range(max(counts)):
        writing = [text for text, count in zip(texts, counts, strict=True) if count > number]
        last = [text.drafted[-1:] or text.unread for text in writing]
        logits = drafting.run(last, [text.cache for text in writing])
        for text, row in zip(writing, logits, strict=True):
            token, proposed = text.chooser.propose(row, drafting.ids, drafting.vocabulary)
            text.drafted.append(token)
            text.proposed.append(proposed)
    for text, length in zip(texts, lengths, strict=True):
        text.cache.crop(length)
    return max(counts)
