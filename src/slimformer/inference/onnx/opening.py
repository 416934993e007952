"""ONNX models ready to be asked: with what prepares their inputs, and as a runner of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer import models
from slimformer.artifact.storage.onnx.handler import check_answers
from slimformer.errors import ArtifactError, UsageError
from slimformer.models.processors import read_processor
from slimformer.tasks.images import check_image_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slimformer.inference.onnx.source import OnnxSource
    from slimformer.inference.runners import Array
    from slimformer.runtime.onnx import OnnxSession
    from slimformer.tasks.kinds.kind import Kind


class OnnxRunner:
    """Runs an ONNX file; any number of threads may share it.

    Args:
        session: The file.
        kind: What it has to do.

    Raises:
        ArtifactError: Where the file does not give what the kind needs.
    """

    def __init__(self, session: OnnxSession, kind: Kind) -> None:
        missing = [name for name in kind.reads if name not in session.outputs]
        if missing:
            raise ArtifactError(
                f"{kind.name} needs `{missing[0]}`, and `{session.path}` gives {', '.join(session.outputs)}; export a "
                "model that gives it, or ask for what this one was made for"
            )
        self.session = session
        self.kind = kind
        #: Items of a batch: one, where others in it would change an answer.
        self.most = 1 if session.one_at_a_time else None

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Run one batch; labels in it only serve to reduce the outputs."""
        inputs = {name: array for name, array in batch.items() if name not in self.kind.targets}
        outputs = self.kind.outputs(_in_float32(self.session.run(inputs)), batch)
        return {name: np.asarray(value) for name, value in outputs.items()}


def _in_float32(outputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value.astype(np.float32, copy=False) for name, value in outputs.items() if value.dtype.kind == "f"}


@dataclass(frozen=True)
class OpenOnnx:
    """An ONNX model with what prepares its inputs.

    Args:
        source: What was opened.
        processor: Its tokenizer or image processor.
    """

    source: OnnxSource
    processor: Any

    def runner(self, kind: Kind) -> OnnxRunner:
        """What runs the model for a kind of task."""
        return OnnxRunner(self.source.session, kind)


def open_onnx(source: OnnxSource, *, check: bool = True) -> OpenOnnx:
    """Make an ONNX model ready to be asked.

    Args:
        source: What `look_up` said of it.
        check: Whether a folder must answer as recorded when it was exported; its sums are compared in any case.
    """
    folder = source.folder
    if source.record is not None:
        source.record.check_processor(folder, source.name)
        if check and source.manifest is not None:
            check_answers(folder, source.session, source.record)
    processor = read_processor(str(folder), source.config, folder)
    if models.sees_images(source.config):
        check_image_size(processor, source.config, source.name)
    return OpenOnnx(source, processor)


def random_arrays(source: OnnxSource, batch: int, length: int) -> dict[str, Array]:
    """Inputs of an ONNX model: token ids, two choices a question where it takes choices, or pixels.

    Args:
        source: The model.
        batch: How many items.
        length: Tokens of each; images have a size of their own.
    """
    draw = np.random.default_rng(0)
    inputs = source.session.inputs
    if models.sees_images(source.config):
        sides = inputs["pixel_values"][1:]
        return {"pixel_values": draw.standard_normal((batch, *sides), np.float32)}
    shape = (batch, 2, length) if len(next(iter(inputs.values()))) > 2 else (batch, length)
    config: Any = source.config.get_text_config()
    ids = draw.integers(5, config.vocab_size, shape)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def refuse_flags(name: str | Path, **flags: Any) -> None:
    """Refuse settings that an ONNX model has no use for; those that are not given are None or False."""
    for flag, value in flags.items():
        if value is not None and value is not False:
            what = f"`--{flag.replace('_', '-')}`"
            seen = what if value is True else f"{what} is `{value}`"
            raise UsageError(f"{seen}, and `{name}` is an ONNX model, which has no use for it; leave it out")
