"""Speculative decoding on one cache: a smaller size drafts, the size in use verifies (arXiv 2211.17192, 2310.07707).

The drafting size reads the keys and values of the verifying size, and adds its own for the tokens it drafts; verifying
them overwrites these. So there is one cache, and whatever lies in it before the end of a row is the verifying size's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.sizes.decoding.acceptance import accept_greedy, accept_sampled
from slimformer.sizes.decoding.draft import DraftStatistics
from slimformer.sizes.decoding.forward import ShortHead
from slimformer.sizes.decoding.length import DraftLength

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.sizes.decoding.draft import Draft
    from slimformer.sizes.decoding.forward import Forward
    from slimformer.sizes.decoding.rows import Rows
    from slimformer.sizes.decoding.scoring import Scoring


class Speculation:
    """One run of `generate`; everything it changes is its own.

    Args:
        draft: How a smaller size drafts.
        verifier: Runs the size in use on the texts.
        drafter: Runs the drafting size on them, and on the same cache.
        scoring: How scores come from logits.
        streamer: Gets the tokens as they come; None for nobody.
    """

    def __init__(self, draft: Draft, verifier: Forward, drafter: Forward, scoring: Scoring, streamer: Any) -> None:
        self.verifier = verifier
        self.drafter = drafter
        self.scoring = scoring
        self.streamer = streamer
        self.rows: Rows = verifier.rows
        self.length = DraftLength(draft)
        self.head = None if draft.shortlist is None else ShortHead(drafter.model, draft.shortlist)
        self.statistics = DraftStatistics()

    def run(self) -> None:
        """Write until every row has ended."""
        self._verify(self.verifier.unread, 0, None)
        while bool(self.rows.open.any()):
            # The last token that fits comes from the verification itself.
            count = min(self.length.next(), int(self.rows.room.max()) - 1)
            self._verify(1, count, self._draft(count))
        self.statistics = self.statistics.plus(cache_bytes=self.verifier.cache.nbytes)
        if self.streamer is not None:
            self.streamer.end()

    def _draft(self, count: int) -> Tensor | None:
        """Write tokens after the end of each row; return what they were drawn from, [batch, count, vocabulary]."""
        proposed = []
        for number in range(count):
            logits = self._draft_logits(self.rows.lengths - 1 + number)
            scores = self.scoring(logits, self.rows, number)[:, 0]
            if self.scoring.sample:
                proposed.append(_probabilities(scores))
                self.rows.propose(number, torch.multinomial(proposed[-1], num_samples=1)[:, 0])
            else:
                self.rows.propose(number, scores.argmax(dim=-1))
        self.statistics = self.statistics.plus(draft_calls=count)
        return torch.stack(proposed, dim=1) if proposed else None

    def _draft_logits(self, last: Tensor) -> Tensor:
        return self.drafter(last, 1) if self.head is None else self.head(self.drafter.hidden(last, 1))

    def _verify(self, unread: int, count: int, proposed: Tensor | None) -> None:
        """Let the size in use read what it has not read, and what was drafted, and keep what it would have written.

        Args:
            unread: Tokens at the end of each row that are not in the cache, the last one at least.
            count: Tokens drafted after it.
            proposed: Probabilities they were drawn from; None where none are drafted, or the best were.
        """
        rows, drafted = self.rows, self.rows.window(self.rows.lengths, count)
        logits = self.verifier(rows.lengths - unread, unread + count, count + 1)
        scores = self.scoring(logits, rows, 0)
        if not self.scoring.sample:
            accepted, tokens = accept_greedy(drafted, scores)
        else:
            target = scores.softmax(dim=-1)
            accepted, tokens = accept_sampled(drafted, target[:, :0] if proposed is None else proposed, target)
        self._count(accepted, count)
        added = rows.extend(tokens, accepted + 1)
        self.statistics = self.statistics.plus(generated=int(added.sum()))
        if self.streamer is not None:
            self.streamer.put(tokens[0, : int(added[0])].cpu())

    def _count(self, accepted: Tensor, count: int) -> None:
        """Only what could still be used counts: a row that is near its limit takes no long draft."""
        usable = (self.rows.room - 1).clamp(min=0, max=count)
        kept = torch.minimum(accepted, usable)
        tried = int((kept + (kept < usable)).sum())
        if count:
            self.length.observe(int(kept.sum()), tried)
        self.statistics = self.statistics.plus(drafted=int(usable.sum()), accepted=int(kept.sum()), verify_calls=1)


def _probabilities(scores: Tensor) -> Tensor:
    """What a draft is drawn from; any token where processors leave none of the shortlist, since all are verified."""
    possible = scores.isfinite().any(dim=-1, keepdim=True)
    return scores.masked_fill(~possible, 0.0).softmax(dim=-1)
