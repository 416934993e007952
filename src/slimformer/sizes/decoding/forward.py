"""One forward of a decoder over some columns of each row, on the cache whose rows have their own ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from slimformer.errors import ConfigError
from slimformer.sizes.decoding.cache import Slots
from slimformer.sizes.decoding.draft import shortlist_ids
from slimformer.views import SliceView, attached, carried, snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from slimformer.sizes.decoding.cache import RowCache
    from slimformer.sizes.decoding.rows import Rows


@dataclass(frozen=True)
class Prompt:
    """What `generate` prepares beside the tokens of the prompt.

    Args:
        positions: Positions of its tokens, [batch or 1, columns].
        mask: 1 for the tokens of cache and prompt that are no padding, [batch, slots]; None where all count.
        skipped: Slots of the cache before the first column: a caller may pass the new tokens alone.
    """

    positions: Tensor
    mask: Tensor | None
    skipped: int

    @classmethod
    def of(cls, tokens: Tensor, settings: Any, inputs: Mapping[str, Any]) -> Prompt:
        """As Transformers reads it: a mask as long as the tokens says that they begin with those of the cache."""
        positions, mask = inputs["position_ids"], inputs.get("attention_mask")
        past, columns = inputs["past_key_values"].get_seq_length(), tokens.shape[1]
        if positions.dim() != 2:
            raise ConfigError(f"positions have {positions.dim()} dimensions, and a draft needs 2; leave the draft out")
        if mask is not None and bool((mask[:, -1] == 0).any()):
            raise ConfigError("a prompt is padded on the right, where the answer begins; pad it on the left")
        whole = (settings._mask_length if mask is None else mask.shape[1]) == columns
        if whole and past >= columns:
            raise ConfigError(f"the cache has {past} tokens, and the prompt with it only {columns}; add a token to it")
        missing = max(0, columns - positions.shape[1])  # those of tokens that are in the cache may be left out
        positions = functional.pad(positions[:, -columns:], (missing, 0))
        return cls(positions.expand(len(tokens), -1), mask, 0 if whole else past)


class Forward:
    """Runs a model over columns of the texts: positions, mask and slots of the cache follow from the columns.

    Whenever it runs, it does so at the size that was in force when it was made.

    Args:
        model: The decoder.
        rows: The texts.
        cache: Its keys and values so far.
        prompt: What came with the prompts.
    """

    def __init__(self, model: Any, rows: Rows, cache: RowCache, prompt: Prompt) -> None:
        self.model = _sliced(model)
        self.rows = rows
        self.cache = cache
        self.prompt = prompt
        self._run = carried(self.model.__call__)
        self._run_base = carried(self.model.base_model.__call__)

    @property
    def unread(self) -> int:
        """Tokens of the prompts that are not in the cache yet."""
        return self.prompt.positions.shape[1] + self.prompt.skipped - self.cache.length

    def __call__(self, first: Tensor, count: int, keep: int = 1) -> Tensor:
        """Logits of the last `keep` columns, [batch, keep, vocabulary].

        Args:
            first: The first column of each row, [batch].
            count: Columns.
            keep: Columns whose logits are needed.
        """
        inputs = self._inputs(first, count)
        if self.model._supports_logits_to_keep():
            inputs["logits_to_keep"] = keep
        logits: Tensor = self._run(**inputs).logits[:, -keep:]
        return logits

    def hidden(self, first: Tensor, count: int) -> Tensor:
        """Hidden states under the head, of the last column, [batch, hidden]."""
        states: Tensor = self._run_base(**self._inputs(first, count)).last_hidden_state[:, -1]
        return states

    def _inputs(self, first: Tensor, count: int) -> dict[str, Any]:
        slots = Slots.of(first + self.prompt.skipped, count)
        self.cache.place(slots)
        return {
            "input_ids": self.rows.window(first, count),
            "position_ids": self._position_ids(first, count),
            "attention_mask": self._attention_mask(slots),
            "past_key_values": self.cache,
            "use_cache": True,
            "return_dict": True,
        }

    def _position_ids(self, first: Tensor, count: int) -> Tensor:
        """As in `generate`: those of the prompt, and one more for each token after it."""
        positions = self.prompt.positions
        last = positions.shape[1] - 1
        columns = first[:, None] + torch.arange(count, device=first.device)
        # A row that has ended, or soon will, drafts beyond its limit, where a model may have no positions.
        columns = columns.clamp(max=self.rows.stopping.limit - 1)
        return positions.gather(1, columns.clamp(max=last)) + (columns - last).clamp(min=0)

    def _attention_mask(self, slots: Slots) -> Tensor | None:
        """What Transformers makes a causal mask of; the mask itself where rows are at different slots."""
        padding = self.prompt.mask
        if padding is not None:
            padding = functional.pad(padding, (0, max(0, slots.end - padding.shape[1])), value=1)[:, : slots.end]
        if slots.even:
            return padding
        seen = torch.arange(slots.end, device=slots.first.device) <= slots.every()[..., None]
        if padding is not None:
            seen = seen & padding.bool()[:, None]
        # Added to the scores: every implementation of attention that takes a whole mask takes this one.
        dtype = self.model.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)
        return hidden[:, None]


def _sliced(model: Any) -> Any:
    """A copy that shares the weights and slices them here and now, instead of in every forward.

    Other views are left alone: what they show would be a second set of weights.
    """
    return snapshot(model) if all(isinstance(each.view, SliceView) for each in attached(model)) else model


class ShortHead:
    """The rows of a model's head that belong to the tokens of a shortlist.

    Args:
        model: The decoder.
        shortlist: Ids of the tokens.
    """

    def __init__(self, model: Any, shortlist: Sequence[int]) -> None:
        head = model.get_output_embeddings()
        if head is None or not isinstance(head, torch.nn.Linear):
            raise ConfigError(
                f"`{type(model).__name__}` has no head that a shortlist could cut; leave the shortlist out"
            )
        self.vocabulary = head.weight.shape[0]
        ids = shortlist_ids(shortlist, self.vocabulary)
        self.ids = torch.tensor(ids, device=head.weight.device)
        # Neighbours need no copy.
        kept = slice(ids[0], ids[-1] + 1) if ids[-1] - ids[0] == len(ids) - 1 else self.ids
        self.weight = head.weight[kept]
        self.bias = None if head.bias is None else head.bias[kept]

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits over the whole vocabulary, [batch, 1, vocabulary]; tokens beside the list have none."""
        short = functional.linear(hidden, self.weight, self.bias).float()
        logits = short.new_full((len(short), self.vocabulary), -torch.inf)
        return logits.index_copy_(1, self.ids, short)[:, None]
