"""Exporting a model to GGUF: every weight is unpacked again and compared before the file gets its name."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from slimformer.errors import ArtifactError, ConfigError
from slimformer.integrations.placing import FileKind, check_place, check_space, staged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from slimformer.integrations.gguf.architectures import Architecture, Settings
    from slimformer.integrations.gguf.tensors import Stored
    from slimformer.integrations.onnx.describing import Exported

#: What the matrices of a file are stored in; see docs/guides/export.md.
GgufNumbers = Literal["float", "float16", "bfloat16", "int8", "ternary", "packed", "q2_0", "tq2_0"]
GGUF = FileKind("GGUF file", ".gguf", lambda start: start == b"GGUF")
#: Bytes of what stands before the tensors, at most, for each piece of the vocabulary.
_PIECE = 64
#: The largest change of a weight by its type, as a share of the largest of its tensor: 8 bits change it by 0.4 %.
LIMIT = 0.01
#: Ways of pooling → their numbers in llama.cpp.
_POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}
#: A score for each class instead of one vector.
_RANK = 4


@dataclass(frozen=True)
class GgufResult:
    """What was written.

    Args:
        path: The file.
        architecture: Class of the model it was made from.
        computed_as: What llama.cpp calls the architecture.
        numbers: What its matrices are stored in.
        bytes: Size of the file.
        types: Types of tensors → how many there are.
        rounding: The largest change of a weight by its type, as a share of the largest weight of its tensor.
        rounded: Name of the tensor where that is; None where nothing changed.
    """

    path: Path
    architecture: str
    computed_as: str
    numbers: GgufNumbers
    bytes: int
    types: dict[str, int]
    rounding: float
    rounded: str | None

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {**asdict(self), "path": str(self.path)}


def to_gguf(
    model: nn.Module | str | Path,
    out: str | Path,
    *,
    numbers: GgufNumbers | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
    overwrite: bool = False,
    processor: Any = None,
) -> GgufResult:
    """Write a model as one GGUF file, with its tokenizer, for llama.cpp.

    Args:
        model: A Transformers model; or an artifact, a folder, a Hub name or an alias.
        out: The file to write; its name ends in `.gguf`.
        numbers: What matrices are stored in: "float" (32 bits), "float16" or "bfloat16"; "int8", rounded here (Q8_0);
            "packed", the codes the model was quantized to, each matrix in the smallest type that holds them;
            "ternary", the same, and an error where the model is not ternary; "q2_0" and "tq2_0", that type for every
            ternary matrix, and an error where one does not fit. By default "packed" where the model is packed and
            "float" where it is not.
        base: Where the base of a mask is, if it has moved.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.
        overwrite: Whether an earlier GGUF file that is there may be replaced.
        processor: Tokenizer of a model that is given in memory; a named one has its own.

    Returns:
        What was written, with how much the file rounds.

    Raises:
        ConfigError: Where the extra `gguf` is not installed, or a setting is impossible.
        ArtifactError: Where llama.cpp does not compute the model or makes other tokens, a type does not hold a weight,
            or the place cannot be written. Nothing is left behind.

    Example:
        >>> to_gguf("out/ternary", "ternary.gguf").types
    """
    from slimformer.runtime.onnx import check_extra

    check_extra(("gguf",), "an export to GGUF", "gguf")
    if numbers is not None and numbers not in get_args(GgufNumbers):
        raise ConfigError(f"`numbers` is `{numbers}`; give one of {', '.join(get_args(GgufNumbers))}")
    from slimformer.integrations.gguf.architectures import architecture_of, settings_of
    from slimformer.integrations.gguf.tensors import tensors_of
    from slimformer.integrations.gguf.vocabulary import vocabulary_of
    from slimformer.integrations.gguf.writing import write
    from slimformer.integrations.onnx.sources import find_model, working_copies

    path = check_place(out, overwrite, GGUF)
    exported = find_model(model, base, cast_base=cast_base, check=check, size=size, processor=processor)
    architecture = architecture_of(exported.model)
    if exported.processor is None:
        raise ArtifactError(
            "the model has no tokenizer that can be read, and a GGUF file holds one; give `processor` for a model in "
            "memory, or a folder with `tokenizer.json`"
        )
    chosen = _check_numbers(exported.model, numbers)
    source, _ = working_copies(exported.model)
    settings = settings_of(source, architecture) | _outputs(exported, architecture)
    vocabulary = vocabulary_of(exported.processor, settings["vocab_size"], _segments(source, architecture))
    tensors = tensors_of(source, architecture, chosen)
    check_space(path, sum(tensor.bytes for tensor in tensors) + _PIECE * len(vocabulary.tokens))
    file_type = _file_type(tensors)
    rounding = _Rounding()
    with staged(path, GGUF, overwrite=overwrite) as draft:
        for tensor, raw, weight in write(draft, architecture.name, settings, vocabulary, tensors, file_type):
            rounding.measure(tensor, raw, weight)
        written = draft.stat().st_size
    types = dict(Counter(tensor.type for tensor in tensors).most_common())
    name = type(exported.model).__name__
    return GgufResult(path, name, architecture.name, chosen, written, types, rounding.largest, rounding.where)


def _check_numbers(model: nn.Module, numbers: GgufNumbers | None) -> GgufNumbers:
    """The numbers that are asked for if the model has them, by default those it has."""
    from slimformer.integrations.gguf.tensors import TERNARY
    from slimformer.integrations.onnx.exporting import Numbers
    from slimformer.integrations.onnx.sources import check_numbers

    if numbers is None or numbers in get_args(Numbers):
        return check_numbers(model, cast("Numbers | None", numbers))
    if numbers in TERNARY:
        check_numbers(model, "ternary")
    return numbers


def _outputs(exported: Exported, architecture: Architecture) -> Settings:
    """How the hidden states of an encoder become its answer."""
    model: Any = exported.model
    if architecture.causal:
        return {}
    if model.base_model is not model:
        labels = [str(name) for _, name in sorted((model.config.id2label or {}).items())]
        return {"pooling_type": _RANK, "classifier.output_labels": labels}
    sentence = exported.sentence()
    pooling = ("mean",) if sentence is None else sentence.pooling
    if len(pooling) > 1 or pooling[0] not in _POOLING:
        raise ArtifactError(
            f"vectors are pooled by {' and '.join(pooling)}, and llama.cpp pools by one of {', '.join(_POOLING)}; "
            "export as ONNX"
        )
    return {"pooling_type": _POOLING[pooling[0]]}


def _segments(model: Any, architecture: Architecture) -> int:
    """How many texts an encoder tells from one another; 0 for a decoder."""
    return 0 if architecture.causal else getattr(model.config, "type_vocab_size", None) or 1


def _file_type(tensors: Sequence[Stored]) -> int:
    """The number of what most weights of matrices are."""
    weights: Counter[int] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            weights[tensor.file_type] += math.prod(tensor.shape)
    return weights.most_common(1)[0][0]


class _Rounding:
    """How far what bytes stand for is from the weights of the model."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.where: str | None = None

    def measure(self, tensor: Stored, raw: Tensor, weight: Tensor) -> None:
        """Compare one tensor.

        Raises:
            ArtifactError: Where it is further off than its type rounds, or no number.
        """
        if not bool(weight.isfinite().all()):
            raise ArtifactError(f"`{tensor.name}` holds nan or infinity; nothing was written, train the model again")
        apart = float((tensor.read(raw) - weight).abs().max()) if weight.numel() else 0.0
        change = apart / max(float(weight.abs().max()), 1e-45) if apart else 0.0
        if change > LIMIT:
            raise ArtifactError(
                f"`{tensor.name}` as {tensor.type} would be {100 * change:.2g} % of its largest weight off, since its "
                "scales are too small for half precision; nothing was written, export with numbers `float`"
            )
        if change > self.largest:
            self.largest, self.where = change, tensor.name
