"""Writing a GGUF file by the package `gguf`, one tensor after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from slimformer.integrations.gguf.tensors import Stored
    from slimformer.integrations.gguf.vocabulary import Vocabulary

#: Version of the types of blocks.
QUANTIZATION_VERSION = 2


def write(
    path: Path,
    architecture: str,
    settings: Mapping[str, Any],
    vocabulary: Vocabulary,
    tensors: Sequence[Stored],
    file_type: int,
) -> Iterator[tuple[Stored, Tensor, Tensor]]:
    """Write a file; give each tensor with its bytes and the weight the model computes with, when it is written.

    Args:
        path: The file.
        architecture: What llama.cpp computes.
        settings: Settings after the name of the architecture.
        vocabulary: The tokenizer.
        tensors: The tensors.
        file_type: What most of them are, by number.
    """
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    try:
        writer.add_type("model")
        writer.add_file_type(file_type)
        writer.add_quantization_version(QUANTIZATION_VERSION)
        for name, value in settings.items():
            _add(writer, f"{architecture}.{name}", value)
        for name, value in _described(vocabulary).items():
            _add(writer, f"tokenizer.{name}", value)
        for tensor in tensors:
            # A type that the package does not know yet is a number to it, and its shape is told as that of floats.
            number: Any = tensor.number
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.bytes, number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            raw, weight = tensor.make()
            writer.write_tensor_data(raw.flatten().numpy())
            yield tensor, raw, weight
    finally:
        writer.close()


def _described(vocabulary: Vocabulary) -> dict[str, Any]:
    lists = {"scores": vocabulary.scores, "merges": vocabulary.merges}
    return {
        "ggml.model": vocabulary.model,
        "ggml.pre": vocabulary.pre,
        "ggml.tokens": vocabulary.tokens,
        "ggml.token_type": vocabulary.types,
        **{f"ggml.{name}": values for name, values in lists.items() if values is not None},
        **{f"ggml.{name}": value for name, value in vocabulary.settings.items()},
        **({} if vocabulary.chat is None else {"chat_template": vocabulary.chat}),
    }


def _add(writer: Any, key: str, value: Any) -> None:
    """A value in the type that llama.cpp reads it in."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
