"""Packed encoders on the native engine, asked like any other model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.artifact.layout import PACKED
from slimformer.errors import UsageError
from slimformer.files import as_path
from slimformer.models.processors import read_processor
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import NativeEncoder

if TYPE_CHECKING:
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

    Raises:
        EngineError: Where the model does not give what the kind needs.
    """

    def __init__(self, encoder: NativeEncoder, kind: Kind) -> None:
        missing = [name for name in kind.reads if name not in encoder.outputs]
        if missing:
            raise EngineError(
                f"{kind.name} needs `{missing[0]}`, and the engine gives {', '.join(encoder.outputs)} of "
                f"`{encoder.folder}`; leave out `--engine`"
            )
        self.encoder = encoder
        self.kind = kind

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Run one batch; padding is left out on the way in and put back on the way out."""
        mask = batch["attention_mask"].astype(bool)
        sequences = [ids[there] for ids, there in zip(batch["input_ids"], mask, strict=True)]
        types = batch.get("token_type_ids")
        kept = None if types is None else [each[there] for each, there in zip(types, mask, strict=True)]
        rows = self.encoder.run(sequences, kept)
        if not self.encoder.pools:
            tokens = rows
            rows = np.zeros((*mask.shape, tokens.shape[-1]), np.float32)
            rows[mask] = tokens
        outputs = self.kind.outputs(self.encoder.named(rows), batch)
        return {name: np.asarray(value) for name, value in outputs.items()}


@dataclass(frozen=True)
class OpenNative:
    """A model on the native engine with what prepares its inputs.

    Args:
        source: What was opened.
        encoder: The model.
        processor: Its tokenizer.
    """

    source: Source
    encoder: NativeEncoder
    processor: Any

    def runner(self, kind: Kind) -> NativeRunner:
        """What runs the model for a kind of task."""
        return NativeRunner(self.encoder, kind)


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


def open_native(source: Source) -> OpenNative:
    """Open a packed artifact on the native engine; its sums were compared when it was looked up."""
    import torch

    folder = as_path(source.name)
    if not (folder / PACKED).is_file():
        raise EngineError(
            f"`{source.name}` is no packed model, and the engine runs what `slimformer quantize` wrote; leave out "
            "`--engine`, or quantize it"
        )
    encoder = NativeEncoder(folder, torch.get_num_threads())
    return OpenNative(source, encoder, read_processor(str(folder), source.config, folder))
