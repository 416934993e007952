"""Decoders on the native kernels: logits of new tokens, with the keys and values of those before kept.

Neither torch nor Transformers is imported. An answer has the same bits alone, in any batch, with any number of threads,
on every instruction set, and however the tokens before were fed: in parts, at once, or again after others were cropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.counts import check_count
from slimformer.errors import DataError, SizeError, describe
from slimformer.files import as_path
from slimformer.runtime.building import ModelParts
from slimformer.runtime.checkpoint import CONFIG, EngineError, read_object, read_tensors
from slimformer.runtime.decoding.architecture import decoder_of
from slimformer.runtime.decoding.building import build_decoder
from slimformer.runtime.decoding.choosing import Chooser
from slimformer.runtime.decoding.generation import Drafting, Text, generate
from slimformer.runtime.decoding.sizes import NestedSizes
from slimformer.runtime.encoder import flat_sequences, threads_for
from slimformer.runtime.native import instruction_set, kernels
from slimformer.sizes.decoding.draft import Draft, shortlist_ids
from slimformer.sizes.decoding.length import DraftLength

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from slimformer.runtime.decoding.choosing import Sampling
    from slimformer.runtime.decoding.generation import Generated
    from slimformer.runtime.onnx import Array
    from slimformer.sizes.naming import Sized
    from slimformer.sizes.size import Size


class NativeDecoder:
    """A decoder in memory. Any number of threads may run it at once, each with caches of its own.

    Args:
        model: A folder that `slimformer quantize` wrote, one with a model in floats, or the parts of a model.
        threads: Threads of one forward; all that the machine has when not given.
        sizes: Sizes that are nested in the model, smallest first; those of `sizes.json` in the folder when not given.

    Raises:
        EngineError: Where the engine does not run such a model; the message says why.
        ConfigError: Where slimformer was installed without the kernels.

    Example:
        >>> decoder = NativeDecoder("stories15M")
        >>> decoder.generate([[1, 9038, 2501, 263, 931]], max_new_tokens=3)
        [[29892, 727, 471]]
    """

    def __init__(
        self, model: str | Path | ModelParts, threads: int | None = None, sizes: Sequence[Size] | None = None
    ) -> None:
        self.instruction_set = instruction_set()
        self.threads = threads_for(threads)
        self.name = model.name if isinstance(model, ModelParts) else model
        self.config = model.config if isinstance(model, ModelParts) else read_object(as_path(model), CONFIG)
        architecture = decoder_of(self.config, self.name)
        parts = model if isinstance(model, ModelParts) else ModelParts(model, self.config, read_tensors(as_path(model)))
        try:
            self._decoder = build_decoder(parts, architecture)
        except (kernels().InputError, TypeError, ValueError, IndexError, KeyError) as error:
            raise EngineError(f"the engine does not run `{self.name}`: {error}; copy it again") from error
        #: The sizes nested in it; None where it has one.
        self.sizes = self._nested(sizes, None if isinstance(model, ModelParts) else as_path(model))
        self._short_head: tuple[bytes, Any] | None = None

    def _nested(self, sizes: Sequence[Size] | None, folder: Path | None) -> NestedSizes | None:
        if sizes is not None:
            return NestedSizes.of(sizes, self._decoder.neurons)
        return None if folder is None else NestedSizes.read(folder, self._decoder.neurons)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence it takes."""
        return int(self._decoder.longest)

    def cache(self) -> Any:
        """An empty cache for one sequence: its `length`, its `bytes`, and `crop`, which forgets what comes after."""
        return self._decoder.cache()

    def run(
        self,
        tokens: Sequence[Sequence[int]],
        caches: Sequence[Any],
        *,
        all_logits: bool = False,
        size: Sized | None = None,
    ) -> Array:
        """Logits after new tokens of some sequences, which their caches keep from then on.

        Args:
            tokens: New tokens of each sequence, one or more, without padding.
            caches: One of `cache` for each sequence, with the tokens before, whichever size has read these.
            all_logits: Whether there are logits of each new token, not of the last one of each sequence alone.
            size: The size of an elastic model that computes, such as `S` or one for each block; the largest by default.

        Returns:
            float32, [sequences or tokens, vocabulary], one sequence after the other.

        Raises:
            DataError: Where a token is none, there are too many, or a cache is another model's or in use; no cache has
                changed then.
        """
        return self._run(tokens, caches, all_logits, self._neurons(size))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop: Collection[int] = (),
        sampling: Sampling | None = None,
        *,
        size: Sized | None = None,
        draft: Draft | Sized | None = None,
    ) -> list[list[int]]:
        """What comes after some prompts; each is answered as it would be alone.

        Args:
            prompts: Tokens of each, one or more.
            max_new_tokens: Tokens that are added at most; fewer where the model takes no more.
            stop: Tokens that end a text, which are not part of it.
            sampling: How tokens are drawn; the likeliest each time when not given.
            size: The size of an elastic model that writes; the largest by default.
            draft: A smaller size that writes ahead, and how. The likeliest tokens are the same with it to the last one;
                drawn ones are distributed as those of `size`.

        Returns:
            The new tokens of each.
        """
        return self.write(prompts, max_new_tokens, stop, sampling, size=size, draft=draft).tokens

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop: Collection[int] = (),
        sampling: Sampling | None = None,
        *,
        size: Sized | None = None,
        draft: Draft | Sized | None = None,
    ) -> Generated:
        """The same as `generate`, with what drafting did."""
        check_count("max-new-tokens", max_new_tokens)
        neurons = self._neurons(size)
        drafting = None if draft is None else self.drafting(Draft.of(draft))
        ids, lengths = flat_sequences(prompts, "tokens")
        ends = np.cumsum(lengths)[:-1]
        texts = [
            Text(
                prompt.tolist(),
                self.cache(),
                Chooser(sampling),
                # The last token that is added need not be read.
                min(max_new_tokens, self.longest - len(prompt) + 1),
                None if drafting is None else DraftLength(drafting.draft),
            )
            for prompt in np.split(ids, ends)
        ]

        def run(tokens: list[list[int]], caches: list[Any], all_logits: bool) -> Array:
            return self._run(tokens, caches, all_logits, neurons)

        return generate(run, texts, stop, drafting)

    def drafting(self, draft: Draft) -> Drafting:
        """What a smaller size runs where it writes ahead."""
        neurons, vocabulary = self._neurons(draft.size), int(self._decoder.vocabulary)
        ids = head = None
        if draft.shortlist is not None:
            ids = np.array(shortlist_ids(draft.shortlist, vocabulary), np.int32)
            head = self._part_of_head(ids)

        def run(tokens: list[list[int]], caches: list[Any]) -> Array:
            return self._run(tokens, caches, False, neurons, head)

        return Drafting(draft, run, ids, vocabulary)

    def _part_of_head(self, ids: Array) -> Any:
        """The rows of the head for some tokens; the last ones that were asked for are kept."""
        key = ids.tobytes()
        kept = self._short_head
        if kept is None or kept[0] != key:
            kept = self._short_head = (key, self._decoder.part_of_head(ids))
        return kept[1]

    def check_size(self, size: Sized | None) -> None:
        """Raise where there is no such size, or none that the engine runs in place; None is the largest."""
        self._neurons(size)

    def _neurons(self, size: Sized | None) -> Array | None:
        """Neurons of each block at a size; None for all."""
        if size is None:
            return None
        if self.sizes is None:
            raise SizeError(f"size `{describe(size)}` is asked for, and `{self.name}` has one size only; leave it out")
        return self.sizes.widths(size)

    def _run(
        self,
        tokens: Sequence[Sequence[int]],
        caches: Sequence[Any],
        all_logits: bool,
        neurons: Array | None,
        head: Any = None,
    ) -> Array:
        ids, lengths = flat_sequences(tokens, "tokens")
        starts = np.cumsum([0, *lengths], dtype=np.int64).astype(np.int32)
        caches = list(caches)
        if not all(isinstance(each, kernels().Cache) for each in caches):
            raise DataError(f"`{describe(caches)}` are no caches; give one of `cache` for each sequence")
        try:
            logits = self._decoder.run(
                ids, starts, caches, all_logits, neurons, head, self.threads, self.instruction_set
            )
        except kernels().InputError as error:
            raise DataError(f"the engine was given {error}") from error
        if not np.isfinite(logits).all():
            for cache, count in zip(caches, lengths, strict=True):
                cache.crop(cache.length - count)
            raise DataError(f"`{self.name}` answers with NaN or infinity; copy it again, or make it anew")
        return np.asarray(logits)
