"""The tensors of a GGUF file: their names, types and bytes, decided before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.anatomy import Anatomy
from slimformer.anatomy.matrix import is_conv1d
from slimformer.errors import ArtifactError, FormatError
from slimformer.formats import Granularity, find_format
from slimformer.formats.gguf import Q2_0, Q8_0, TQ2_0, GgufForm, smallest
from slimformer.integrations.gguf.rope import FACTORS, rope_factors
from slimformer.views import packed_weights
from slimformer.views.packed import small_float

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from slimformer.formats import PackedWeight
    from slimformer.integrations.gguf.architectures import Architecture

#: Types of floats: their number in `ggml_type`, and what `general.file_type` is of a file whose matrices have them.
FLOATS = {torch.float32: ("F32", 0, 0), torch.float16: ("F16", 1, 1), torch.bfloat16: ("BF16", 30, 32)}
#: Numbers that are asked for → the type matrices are cast to.
CASTS = {"float": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: Numbers that are one type of blocks, for ternary weights.
TERNARY = {"q2_0": Q2_0, "tq2_0": TQ2_0}
#: Tables whose rows llama.cpp adds as they are, so that they have to be float32.
_ADDED = ("position_embd.weight", "token_types.weight")


@dataclass(frozen=True)
class Stored:
    """One tensor of a file.

    Args:
        name: Its name in the file.
        shape: Its shape, the rows first.
        type: What llama.cpp calls its type.
        number: The number of that type.
        file_type: What a file of mostly such matrices is called by number.
        bytes: How many it takes.
        make: Gives its bytes, uint8, and the weight the model computes with.
        read: Gives the weight that such bytes stand for.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    number: int
    file_type: int
    bytes: int
    make: Callable[[], tuple[Tensor, Tensor]]
    read: Callable[[Tensor], Tensor]


def tensors_of(model: PreTrainedModel, architecture: Architecture, numbers: str) -> list[Stored]:
    """The tensors of a model, each once.

    Args:
        model: A model in float32 on the CPU, without views.
        architecture: What llama.cpp computes it as.
        numbers: What matrices are stored in; see docs/guides/export.md.

    Raises:
        ArtifactError: Where llama.cpp has no place for a weight, or the numbers do not hold it.
    """
    anatomy = Anatomy.of(model)
    state, packed = model.state_dict(keep_vars=True), packed_weights(model)
    names = _Names(model, architecture, len(anatomy.blocks))
    tied, stored = set(), []
    for key, parameter in state.items():
        name = None if id(parameter) in tied else names.of(key)
        if name is None:
            continue
        tied.add(id(parameter))
        weight = _Weight(key, name, parameter.detach(), packed.get(key), _transposed(model, key))
        stored.append(_stored(_prepared(weight, architecture, anatomy), numbers))
    factors = rope_factors(anatomy.config, anatomy)
    if factors is not None:
        stored.append(_floats(_Weight(FACTORS, FACTORS, factors, None), torch.float32))
    return stored


def _transposed(model: PreTrainedModel, key: str) -> bool:
    path, _, leaf = key.rpartition(".")
    return leaf == "weight" and is_conv1d(model.get_submodule(path))


class _Names:
    """Names in a file, by the table of the package `gguf`."""

    def __init__(self, model: PreTrainedModel, architecture: Architecture, blocks: int) -> None:
        import gguf

        arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
        self.table = gguf.get_tensor_name_map(arch, blocks)
        self.architecture = architecture
        self.prefix = f"{model.base_model_prefix}."
        self.headed = model.base_model is not model

    def of(self, key: str) -> str | None:
        """The name of a tensor; None where it is left out."""
        bare, _, leaf = key.removeprefix(self.prefix).rpartition(".")
        if bare in self.architecture.renamed:
            # Without a classifier nothing reads the pooler.
            other = self.architecture.renamed[bare] if self.headed else None
            return None if other is None else f"{other}.{leaf}"
        for candidate in (bare, self.prefix + bare):
            name = self.table.get_name(candidate)
            if name is not None and (leaf != "bias" or self.architecture.biases):
                return f"{name}.{leaf}"
        raise ArtifactError(
            f"llama.cpp has no place for `{key}` in its architecture `{self.architecture.name}`; export as ONNX"
        )


@dataclass(frozen=True)
class _Weight:
    """A tensor of the model on its way into the file.

    Args:
        key: Its name in the model.
        name: Its name in the file.
        values: What the model computes with, the rows first.
        packed: What it is packed as, where it is.
        transposed: Whether the module holds it as [in, out].
        order: New order of its rows.
    """

    key: str
    name: str
    values: Tensor
    packed: PackedWeight | None
    transposed: bool = False
    order: Tensor | None = None

    def ordered(self, tensor: Tensor) -> Tensor:
        """Rows in the order of the file."""
        return tensor if self.order is None or len(tensor) == 1 else tensor[self.order]

    @property
    def columns(self) -> int:
        """Width of a row."""
        return self.values.shape[-1]


def _prepared(weight: _Weight, architecture: Architecture, anatomy: Anatomy) -> _Weight:
    """A weight as llama.cpp multiplies by it."""
    if weight.packed is not None and not torch.equal(weight.values, weight.packed.weight()):
        raise ArtifactError(
            f"`{weight.key}` was changed after it was packed, so its codes are not its weight any more; quantize the "
            "model again, or export with numbers `float`"
        )
    values = weight.values.mT if weight.transposed else weight.values
    if weight.name == "position_embd.weight":
        values = values[architecture.dropped_positions(anatomy.config) :]
    added = architecture.added(weight.name)
    values = values + added if added else values
    packed = None if weight.name in _ADDED or values.dim() < 2 else weight.packed
    return _Weight(weight.key, weight.name, values, packed, order=architecture.rows(weight.name, anatomy))


def _stored(weight: _Weight, numbers: str) -> Stored:
    """The type for a weight among the numbers that are asked for."""
    if weight.values.dim() < 2 or weight.name in _ADDED:
        return _floats(weight, torch.float32)
    if numbers in CASTS:
        return _floats(weight, CASTS[numbers])
    if numbers == "int8":
        return _rounded(weight)
    if weight.packed is None:
        return _floats(weight, small_float(weight.values).dtype)
    return _blocks(weight, weight.packed, numbers)


def _floats(weight: _Weight, dtype: torch.dtype) -> Stored:
    limit = torch.finfo(dtype).max
    if dtype == torch.float16 and float(weight.values.abs().max()) > limit:
        raise ArtifactError(
            f"`{weight.key}` has a value beyond {limit:.0f}, the largest of float16; export with numbers `bfloat16`"
        )
    name, number, file_type = FLOATS[dtype]

    def make() -> tuple[Tensor, Tensor]:
        values = weight.ordered(weight.values.float())
        return values.to(dtype).contiguous().view(torch.uint8).flatten(), values

    def read(raw: Tensor) -> Tensor:
        return raw.view(dtype).float().view(weight.values.shape)

    shape = tuple(weight.values.shape)
    return Stored(weight.name, shape, name, number, file_type, weight.values.numel() * dtype.itemsize, make, read)


def _rounded(weight: _Weight) -> Stored:
    """A float weight in 8 bits, with a scale for each block."""
    if not Q8_0.holds(weight.columns):
        raise ArtifactError(
            f"`{weight.key}` is {weight.columns} wide, and a block of Q8_0 is {Q8_0.block} weights of a row; export "
            "with numbers `float16` or `bfloat16`"
        )

    def make() -> tuple[Tensor, Tensor]:
        values = weight.ordered(weight.values.float())
        codes, scales = find_format("int8").quantize(values, Granularity("group", Q8_0.block))
        return Q8_0.pack(codes, _spread(weight, Q8_0, scales, Q8_0.block)), values

    return _of_form(weight, Q8_0, make)


def _blocks(weight: _Weight, packed: PackedWeight, numbers: str) -> Stored:
    """A packed weight, with the codes it has."""
    form = _form(weight, packed, numbers)

    def make() -> tuple[Tensor, Tensor]:
        codes = weight.ordered(packed.unpack())
        scales = weight.ordered(packed.scales)
        blocks = form.pack(codes, _spread(weight, form, scales, packed.group_size))
        return blocks, weight.ordered(weight.values.float())

    return _of_form(weight, form, make)


def _of_form(weight: _Weight, form: GgufForm, make: Callable[[], tuple[Tensor, Tensor]]) -> Stored:
    rows, columns = weight.values.shape
    size = rows * (columns // form.block) * form.block_bytes
    read: Callable[[Tensor], Tensor] = partial(form.weight, columns=columns)
    return Stored(weight.name, (rows, columns), form.name, form.number, form.file_type, size, make, read)


def _form(weight: _Weight, packed: PackedWeight, numbers: str) -> GgufForm:
    columns, group = weight.columns, packed.group_size
    single = TERNARY.get(numbers)
    forms = packed.format.gguf if single is None or single not in packed.format.gguf else (single,)
    form = smallest(forms, columns, group)
    if form is not None:
        return form
    raise ArtifactError(_unfit(weight.key, packed, columns, forms))


def _unfit(key: str, packed: PackedWeight, columns: int, forms: tuple[GgufForm, ...]) -> str:
    """Why no block holds a weight, and what to do."""
    name = packed.format.name
    if not forms:
        return f"`{key}` is {name}, which no type of GGUF holds; export with numbers `float16` or `int8`"
    fewest = min(forms, key=lambda form: form.block)
    sizes = f"a block of {fewest.name} is {fewest.block} weights of a row with one scale"
    shared = packed.group_size
    if columns % fewest.block == 0 and shared is not None:
        what, instead = f"has one scale for {shared} weights", f"a group size that is a multiple of {fewest.block}"
    else:
        what, instead = f"is {columns} wide", f"a model whose widths are multiples of {fewest.block}"
    narrower = len(packed.format.gguf) > len(forms)
    others = "`packed`, the smallest type that holds each matrix" if narrower else "`float16`"
    return f"`{key}` {what}, and {sizes}; export with numbers {others}, or quantize {instead}"


def _spread(weight: _Weight, form: GgufForm, scales: Tensor, group_size: int | None) -> Tensor:
    rows, columns = weight.values.shape
    try:
        return form.spread(scales, rows, columns, group_size)
    except FormatError as error:
        raise ArtifactError(f"`{weight.key}`: {error}") from error
