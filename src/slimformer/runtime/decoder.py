"""Decoders on the native kernels: logits of new tokens, with the keys and values of those before kept.

Neither torch nor Transformers is imported. An answer has the same bits alone, in any batch, with any number of threads,
on every instruction set, and however the tokens before were fed: in parts, at once, or again after others were cropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.config import check_count
from slimformer.errors import DataError, describe
from slimformer.files import as_path
from slimformer.runtime.building import ModelParts
from slimformer.runtime.checkpoint import EngineError, read_tensors
from slimformer.runtime.decoding.architecture import decoder_of
from slimformer.runtime.decoding.building import build_decoder
from slimformer.runtime.decoding.choosing import Chooser
from slimformer.runtime.encoder import flat_sequences, read_config, threads_for
from slimformer.runtime.native import instruction_set, kernels

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from slimformer.runtime.decoding.choosing import Sampling
    from slimformer.runtime.onnx import Array


class NativeDecoder:
    """A decoder in memory. Any number of threads may run it at once, each with caches of its own.

    Args:
        model: A folder that `slimformer quantize` wrote, one with a model in floats, or the parts of a model.
        threads: Threads of one forward; all that the machine has when not given.

    Raises:
        EngineError: Where the engine does not run such a model; the message says why.
        ConfigError: Where slimformer was installed without the kernels.

    Example:
        >>> decoder = NativeDecoder("stories15M")
        >>> decoder.generate([[1, 9038, 2501, 263, 931]], max_new_tokens=3)
        [[29892, 727, 471]]
    """

    def __init__(self, model: str | Path | ModelParts, threads: int | None = None) -> None:
        self.instruction_set = instruction_set()
        self.threads = threads_for(threads)
        self.name = model.name if isinstance(model, ModelParts) else model
        self.config = model.config if isinstance(model, ModelParts) else read_config(as_path(model))
        architecture = decoder_of(self.config, self.name)
        parts = model if isinstance(model, ModelParts) else ModelParts(model, self.config, read_tensors(as_path(model)))
        try:
            self._decoder = build_decoder(parts, architecture)
        except (kernels().InputError, TypeError, ValueError, IndexError, KeyError) as error:
            raise EngineError(f"the engine does not run `{self.name}`: {error}; copy it again") from error

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence it takes."""
        return int(self._decoder.longest)

    def cache(self) -> Any:
        """An empty cache for one sequence: its `length`, its `bytes`, and `crop`, which forgets what comes after."""
        return self._decoder.cache()

    def run(self, tokens: Sequence[Sequence[int]], caches: Sequence[Any], *, all_logits: bool = False) -> Array:
        """Logits after new tokens of some sequences, which their caches keep from then on.

        Args:
            tokens: New tokens of each sequence, one or more, without padding.
            caches: One of `cache` for each sequence, with the tokens before.
            all_logits: Whether there are logits of each new token, not of the last one of each sequence alone.

        Returns:
            float32, [sequences or tokens, vocabulary], one sequence after the other.

        Raises:
            DataError: Where a token is none, there are too many, or a cache is another model's or in use; no cache has
                changed then.
        """
        ids, lengths = flat_sequences(tokens, "tokens")
        starts = np.cumsum([0, *lengths], dtype=np.int64).astype(np.int32)
        caches = list(caches)
        if not all(isinstance(each, kernels().Cache) for each in caches):
            raise DataError(f"`{describe(caches)}` are no caches; give one of `cache` for each sequence")
        try:
            logits = self._decoder.run(ids, starts, caches, all_logits, self.threads, self.instruction_set)
        except kernels().InputError as error:
            raise DataError(f"the engine was given {error}") from error
        if not np.isfinite(logits).all():
            for cache, count in zip(caches, lengths, strict=True):
                cache.crop(cache.length - count)
            raise DataError(f"`{self.name}` answers with NaN or infinity; copy it again, or make it anew")
        return np.asarray(logits)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop: Collection[int] = (),
        sampling: Sampling | None = None,
    ) -> list[list[int]]:
        """What comes after some prompts; each is answered as it would be alone.

        Args:
            prompts: Tokens of each, one or more.
            max_new_tokens: Tokens that are added at most; fewer where the model takes no more.
            stop: Tokens that end a text, which are not part of it.
            sampling: How tokens are drawn; the likeliest each time when not given.

        Returns:
            The new tokens of each.
        """
        check_count("max-new-tokens", max_new_tokens)
        caches = [self.cache() for _ in prompts]
        choosers = [Chooser(sampling) for _ in prompts]
        added: list[list[int]] = [[] for _ in prompts]
        going = list(range(len(caches)))
        logits = self.run(prompts, caches)
        while going:
            chosen = {at: choosers[at].choose(row) for at, row in zip(going, logits, strict=True)}
            going = [at for at in going if chosen[at] not in stop]
            for at in going:
                added[at].append(chosen[at])
            going = [at for at in going if len(added[at]) < max_new_tokens and caches[at].length < self.longest]
            if going:
                logits = self.run([[chosen[at]] for at in going], [caches[at] for at in going])
        return added
