"""Encoders on the native kernels: packed with activations of 8 bits, or in floats; one call for a whole forward.

Of an artifact that `slimformer quantize` wrote, codes and scales are read as they lie in the file and stay packed.
Neither torch nor Transformers is imported. An answer has the same bits alone, in any batch, with any number of threads
and on every instruction set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.counts import check_threads
from slimformer.errors import ConfigError, DataError, describe
from slimformer.files import as_path
from slimformer.runtime.architecture import architecture_of, head_of
from slimformer.runtime.building import ModelParts, build
from slimformer.runtime.checkpoint import CONFIG, EngineError, read_object, read_tensors
from slimformer.runtime.mapping import release
from slimformer.runtime.native import instruction_set, kernels
from slimformer.runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slimformer.runtime.onnx import Array
    from slimformer.sizes.naming import Sized


class NativeEncoder:
    """An encoder in memory. Any number of threads may run it at once.

    Args:
        model: A folder that `slimformer quantize` wrote, one with a model in floats, or the parts of a model.
        threads: Threads of one forward; all that the machine has when not given.
        size: Which size of an elastic model, such as `S` or one for each block; the largest when not given. Only what
            it needs is kept in memory.

    Raises:
        EngineError: Where the engine does not run such a model; the message says why.
        ConfigError: Where slimformer was installed without the kernels.
        SizeError: Where there is no such size.

    Example:
        >>> NativeEncoder("sentiment-ternary").run([[101, 1037, 2143, 102]]).shape
        (1, 2)
    """

    def __init__(self, model: str | Path | ModelParts, threads: int | None = None, size: Sized | None = None) -> None:
        self.instruction_set = instruction_set()
        self.threads = threads_for(threads)
        config = model.config if isinstance(model, ModelParts) else read_object(as_path(model), CONFIG)
        self.name = model.name if isinstance(model, ModelParts) else model
        self.config = config
        kind = str(config.get("model_type", ""))
        architecture = architecture_of(kind, str(self.name))
        self.head = head_of(kind, config, str(self.name))
        self.reads_images = bool(architecture.tokens)
        types = config.get("type_vocab_size")
        #: Whether tokens have types; a table of one row tells nothing.
        self.reads_types = architecture.types is not None and isinstance(types, int) and types > 1
        parts = model if isinstance(model, ModelParts) else ModelParts(model, config, read_tensors(as_path(model)))
        mapped = parts.tensors
        if size is not None:
            from slimformer.runtime.nesting.sizes import at_size

            parts = at_size(as_path(parts.name), parts, size)
            self.config = dict(parts.config)
        self._dimensions = None if self.head.layers else Settings(self.config, self.name).dimensions()
        try:
            built = build(parts, architecture, self.head)
        except (kernels().InputError, TypeError, ValueError, IndexError) as error:
            raise EngineError(f"the engine does not run `{self.name}`: {error}; copy it again") from error
        self._encoder = built.encoder
        self._blocks = built.blocks
        release(mapped)

    @property
    def pools(self) -> bool:
        """Whether there is one row for each sequence; else there is one for each token."""
        return self.head.pools

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence it takes."""
        return int(self._encoder.longest)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What Transformers calls the outputs."""
        return self.head.outputs

    def named(self, rows: Array) -> dict[str, Array]:
        """The outputs by their names: each has a column of its own, or the only one has all."""
        return self.head.named(rows)

    def run(self, sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> Array:
        """What the model computes of some sequences of tokens, without padding.

        Args:
            sequences: Tokens, as the tokenizer gives them.
            types: The type of each token; 0 when not given.

        Returns:
            float32, a row for each sequence, or for each token of all sequences one after the other.
        """
        return self._finite(self._ask(self._encoder.run, *flat_input(sequences, types)))[:, : self._dimensions]

    def run_images(self, pixels: Array) -> Array:
        """What the model computes of some images.

        Args:
            pixels: [images, channels, height, width], as the image processor gives them.

        Returns:
            float32, a row for each image, or for each patch, and those before them, of all images one after the other.
        """
        return self._finite(self._ask(self._encoder.run_images, self._patches(pixels)))[:, : self._dimensions]

    def _patches(self, pixels: Array) -> Array:
        """Images as the projection of patches reads them."""
        if not self.reads_images:
            raise DataError(f"images were given to `{self.name}`, a model of texts; give tokens to `run`")
        settings = Settings(self.config, self.name)
        side, size = settings.side("patch_size"), settings.side("image_size")
        fits = isinstance(pixels, np.ndarray) and pixels.dtype.kind in "fiu" and pixels.ndim == 4
        if not fits or not len(pixels) or pixels.shape[2:] != (size, size):
            raise DataError(
                f"`{describe(pixels)}` was given to `{self.name}`; give numbers, [images, channels, {size}, {size}]"
            )
        images, channels, height, width = pixels.shape
        rows = pixels.reshape(images, channels, height // side, side, width // side, side).transpose(0, 2, 4, 1, 3, 5)
        return np.ascontiguousarray(rows.reshape(images, -1, channels * side * side), np.float32)

    def _ask(self, run: Callable[..., Any], *inputs: Any) -> Any:
        try:
            return run(*inputs, threads=self.threads, isa=self.instruction_set)
        except kernels().InputError as error:
            raise DataError(f"the engine was given {error}") from error

    def _finite(self, outputs: Array, name: str | Path | None = None) -> Array:
        if not np.isfinite(outputs).all():
            raise DataError(f"`{name or self.name}` answers with NaN or infinity; copy it again, or make it anew")
        return outputs


def threads_for(threads: int | None) -> int:
    """As many threads as asked for, or as the machine has."""
    try:
        return int(kernels().threads()) if threads is None else check_threads(threads)
    except ValueError as error:
        raise ConfigError(f"`threads` is `{describe(threads)}`; {error}") from None


def flat_input(
    sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None
) -> tuple[Array, Array | None, Array]:
    """Tokens, their types and where each sequence begins, as the kernels take them."""
    ids, lengths = flat_sequences(sequences, "tokens")
    flat, others = (None, lengths) if types is None else flat_sequences(types, "types of tokens")
    if others != lengths:
        raise DataError("types of tokens are not as many as the tokens of each sequence; give one for each")
    return ids, flat, np.cumsum([0, *lengths], dtype=np.int64).astype(np.int32)


def flat_sequences(sequences: Sequence[Sequence[int]], what: str) -> tuple[Array, list[int]]:
    """Whole numbers of some sequences one after the other, and how many each has."""
    try:
        arrays = [np.asarray(each) for each in sequences]
    except (TypeError, ValueError):
        arrays = []
    if not arrays or any(each.ndim != 1 or (each.size and each.dtype.kind not in "iu") for each in arrays):
        raise DataError(f"{what} are `{describe(sequences)}`; give one or more lists of whole numbers")
    flat = np.concatenate(arrays)
    limits = np.iinfo(np.int32)
    if flat.size > limits.max or (flat.size and (flat.min() < limits.min or flat.max() > limits.max)):
        raise DataError(f"{flat.size} {what}, or one beyond 32 bits; give fewer, and those of the vocabulary")
    return flat.astype(np.int32), [len(each) for each in arrays]
