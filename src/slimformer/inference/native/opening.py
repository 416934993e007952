"""Models on the native engine, asked like any other model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimformer.artifact.provenance import stored_tensors
from slimformer.errors import SizeError, UsageError
from slimformer.inference.runners import end_tokens
from slimformer.models import load_skeleton, located
from slimformer.models.processors import read_processor
from slimformer.runtime.building import ModelParts
from slimformer.runtime.checkpoint import CONFIG, EngineError, read_object
from slimformer.runtime.decoder import NativeDecoder
from slimformer.runtime.decoding.architecture import decodes
from slimformer.runtime.decoding.settings import read_stop
from slimformer.runtime.encoder import NativeEncoder
from slimformer.views import snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from slimformer.inference.runners import Array
    from slimformer.inference.source import Source
    from slimformer.tasks.kinds.kind import Kind

#: What may run a model.
ENGINES = ("torch", "native")


class NativeRunner:
    """Runs a model on the native engine; any number of threads may share it.

    Args:
        encoder: The model.
        kind: What it has to do.
        weights: Shapes and types of its weights, on the meta device.

    Raises:
        EngineError: Where the model does not give what the kind needs.
    """

    def __init__(self, encoder: NativeEncoder, kind: Kind, weights: Sequence[Tensor] = ()) -> None:
        missing = [name for name in kind.reads if name not in encoder.outputs]
        if missing:
            raise EngineError(
                f"{kind.name} needs `{missing[0]}`, and the engine gives {', '.join(encoder.outputs)} of "
                f"`{encoder.name}`; leave out `--engine`"
            )
        self.encoder = encoder
        self.kind = kind
        self.weights = weights

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Run one batch; padding is left out on the way in and put back on the way out."""
        if self.encoder.reads_images:
            rows = self.encoder.run_images(batch["pixel_values"])
            images = (len(batch["pixel_values"]),) if self.encoder.pools else (len(batch["pixel_values"]), -1)
            return self._outputs(rows.reshape(*images, rows.shape[-1]), batch)
        rows = self.encoder.run(unpadded(batch, "input_ids"), unpadded(batch, "token_type_ids"))
        return self._outputs(rows if self.encoder.pools else padded(rows, batch), batch)

    def _outputs(self, rows: Array, batch: dict[str, Array]) -> dict[str, Array]:
        outputs = self.kind.outputs(self.encoder.named(rows), batch)
        return {name: np.asarray(value) for name, value in outputs.items()}


def unpadded(batch: dict[str, Array], name: str) -> Any:
    """An input of each sequence of a batch without its padding; None where the batch has no such input."""
    if name not in batch:
        return None
    return [row[there] for row, there in zip(batch[name], batch["attention_mask"].astype(bool), strict=True)]


def padded(tokens: Array, batch: dict[str, Array]) -> Array:
    """Rows of all tokens of a batch where these stand in it; in the places of padding are zeros."""
    mask = batch["attention_mask"].astype(bool)
    rows = np.zeros((*mask.shape, tokens.shape[-1]), np.float32)
    rows[mask] = tokens
    return rows


@dataclass(frozen=True)
class OpenNative:
    """A model on the native engine with what prepares its inputs.

    Args:
        source: What was opened.
        encoder: The model.
        processor: Its tokenizer.
        weights: Shapes and types of its weights, on the meta device.
    """

    source: Source
    encoder: NativeEncoder
    processor: Any
    weights: Sequence[Tensor] = ()

    def runner(self, kind: Kind) -> NativeRunner:
        """What runs the model for a kind of task."""
        return NativeRunner(self.encoder, kind, self.weights)


class NativeWriter:
    """Lets a decoder on the native engine go on with texts, always with the likeliest token.

    Args:
        decoder: The model.
        kind: What it has to do.
        stop: Tokens that end a text.
        size: The size of an elastic model that writes.
        draft: A smaller one that writes ahead.
    """

    def __init__(
        self,
        decoder: NativeDecoder,
        kind: Kind,
        stop: Sequence[int],
        size: str | None = None,
        draft: str | None = None,
    ) -> None:
        self.decoder = decoder
        self.kind = kind
        self.stop = stop
        self.size = size
        self.draft = draft

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Go on with a batch of texts, whose padding is left out; -1 stands after the end of each."""
        mask = batch["attention_mask"].astype(bool)
        prompts = [ids[there].tolist() for ids, there in zip(batch["input_ids"], mask, strict=True)]
        added = self.decoder.generate(prompts, self.kind.new_tokens, self.stop, size=self.size, draft=self.draft)
        sequences = np.full((len(added), max(1, *map(len, added))), -1)
        for row, tokens in zip(sequences, added, strict=True):
            row[: len(tokens)] = tokens
        return dict(self.kind.outputs({"sequences": sequences}, batch))


@dataclass(frozen=True)
class OpenNativeDecoder:
    """A decoder on the native engine with what prepares its inputs.

    Args:
        source: What was opened.
        decoder: The model.
        processor: Its tokenizer.
        stop: Tokens that end a text.
        size: The size of an elastic model that is in use, where the decoder has all of them; None for the largest.
    """

    source: Source
    decoder: NativeDecoder
    processor: Any
    stop: tuple[int, ...]
    size: str | None = None

    def runner(self, kind: Kind) -> NativeRunner:
        """Refuse to be asked for outputs, as evaluation does: what is here goes on with texts."""
        raise EngineError(
            f"{kind.name} reads the outputs of `{self.source.name}`, and the engine goes on with texts; leave out "
            "`--engine`"
        )

    def writer(self, kind: Kind, draft: str | None = None) -> NativeWriter:
        """What goes on with texts; a smaller size of an elastic model may write ahead."""
        if draft is not None:
            if self.decoder.sizes is None:
                raise SizeError(
                    f"`--draft` is `{draft}`, and the size in use has other heads or blocks than the largest, by which "
                    "the engine has no other; leave out one of `--draft`, `--size` and `--engine`"
                )
            self.decoder.sizes.check_draft(draft, self.size)
        return NativeWriter(self.decoder, kind, self.stop, self.size, draft)


def is_native(engine: str | None) -> bool:
    """Whether a model is to be run by the native engine."""
    if engine is not None and engine not in ENGINES:
        raise UsageError(f"`--engine` is `{engine}`; give {' or '.join(ENGINES)}")
    return engine == "native"


def refuse_with_engine(**flags: Any) -> None:
    """Refuse settings that the native engine has no use for; those that are not given are None."""
    for flag, value in flags.items():
        if value is not None:
            raise UsageError(
                f"`--{flag.replace('_', '-')}` is `{value}` beside `--engine native`, which has none; leave one out"
            )


def open_packed(source: Source, *, processor: bool = True) -> OpenNative | OpenNativeDecoder:
    """Open a packed artifact on the native engine, from its file; its sums were compared when it was looked up.

    Args:
        source: The artifact.
        processor: Whether what prepares its inputs is read too.
    """
    folder, threads = located(source.name), torch.get_num_threads()
    read = read_processor(str(folder), source.config, folder) if processor else None
    if decodes(read_object(folder, CONFIG)):
        return _open_decoder(source, NativeDecoder(folder, threads), read)
    weights = list(load_skeleton(source.name).parameters())
    return OpenNative(source, NativeEncoder(folder, threads), read, weights)


def open_nested(source: Source, size: str | None, *, processor: bool = True) -> OpenNativeDecoder | None:
    """Open an elastic decoder on the native engine with all its sizes, from its file; its sums were compared.

    None where it is no decoder, and where the engine has no part in memory that is that size: torch takes it out.

    Args:
        source: The artifact.
        size: The size that is in use; None for the largest.
        processor: Whether what prepares its inputs is read too.
    """
    folder = located(source.name)
    if not decodes(read_object(folder, CONFIG)):
        return None
    decoder = NativeDecoder(folder, torch.get_num_threads())
    if decoder.sizes is None or (size is not None and not decoder.sizes.takes(size)):
        return None
    read = read_processor(str(folder), source.config, folder) if processor else None
    return _open_decoder(source, decoder, read, size)


def _open_decoder(source: Source, decoder: NativeDecoder, processor: Any, size: str | None = None) -> OpenNativeDecoder:
    own = getattr(processor, "eos_token_id", None)
    stop = read_stop(located(source.name), decoder.config) or (() if own is None else (own,))
    return OpenNativeDecoder(source, decoder, processor, stop, size)


def open_floats(source: Source, model: nn.Module, processor: Any) -> OpenNative | OpenNativeDecoder:
    """Open a model that torch has opened on the native engine: its weights as they are now, in float32 or packed."""
    plain = snapshot(model)
    config = {**plain.config.to_dict(), "architectures": [type(plain).__name__]}
    packed = bool(getattr(plain, "is_quantized", False))
    if packed:  # as a mask on a packed base is; by the names and with the codes that a file of it would have
        tensors = {name: tensor.numpy(force=True) for name, tensor in stored_tensors(plain).items()}
    else:
        tensors = {name: tensor.float().numpy(force=True) for name, tensor in plain.state_dict().items()}
    parts = ModelParts(source.name, config, tensors, from_file=packed)
    if decodes(config):
        stop = tuple(end_tokens(model, processor)) if processor is not None else ()
        return OpenNativeDecoder(source, NativeDecoder(parts, torch.get_num_threads()), processor, stop)
    weights = [parameter.to("meta") for parameter in plain.parameters()]
    return OpenNative(source, NativeEncoder(parts, torch.get_num_threads()), processor, weights)
