"""Weights as `MatMulNBits` reads them: whole blocks of a row, a scale for each, codes of 2, 4 or 8 bits.

The operator allows any width; only a block must be a power of two. The last block of a row is filled up with codes of
zero, which change no product. There are no zero points: the one that is left out is the middle, where the layouts that
number formats name for ONNX have it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.errors import ArtifactError
from slimformer.formats import Granularity, find_format, pack, unpack

if TYPE_CHECKING:
    from slimformer.formats import OnnxForm, PackedWeight

#: Block sizes with kernels that compute in int8; the operator also takes blocks of 16, and computes those in float.
FAST = (128, 64, 32)
SMALLEST = 16


@dataclass(frozen=True)
class BlockWeight:
    """One weight in blocks.

    Args:
        codes: uint8, [rows, blocks, bytes of a block], or [rows, bytes] for a table that is only looked up.
        scales: float32, [rows, blocks].
        form: Bits of a code, and the layout they lie in.
        block_size: Codes of a block.
        columns: Codes of a row that count.
    """

    codes: Tensor
    scales: Tensor
    form: OnnxForm
    block_size: int
    columns: int

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return self.scales.shape[0]

    def weight(self) -> Tensor:
        """The float weight that this stands for, [rows, columns]."""
        packed = self.codes.flatten(1)
        codes = unpack(packed, self.form.layout, packed.shape[-1] * self.form.layout.digits)
        return codes[:, : self.columns] * self.scales.repeat_interleave(self.block_size, dim=1)[:, : self.columns]


def packed_blocks(weight: PackedWeight, name: str, table: bool = False) -> BlockWeight:
    """The blocks of a packed weight, with its codes and scales as they are.

    Args:
        weight: The packed weight.
        name: What to call it in an error.
        table: Whether it is only looked up, row by row, and never multiplied.

    Raises:
        ArtifactError: Where the operator cannot hold the format, or no block fits into the groups that share a scale.
    """
    form = weight.format.onnx
    if form is None:
        raise ArtifactError(
            f"`{name}` is {weight.format.name}, which no operator of ONNX computes with; export with numbers `float` "
            "or `int8`"
        )
    sharing = weight.group_size if weight.group_size is not None and weight.group_size < weight.columns else None
    size = _block_size(weight.columns, form.bits, sharing, table)
    if size is None:
        raise ArtifactError(
            f"`{name}` has one scale for {sharing} weights, and a block of ONNX is a power of two from {SMALLEST} on; "
            "quantize with a group size that is a multiple of 32, or export with numbers `float` or `int8`"
        )
    firsts = torch.arange(0, weight.columns, size) // (sharing or weight.columns)
    scales = weight.scales.expand(len(weight.codes), -1)[:, firsts]
    return _in_blocks(weight.unpack(), scales, form, size, table)


def rounded_blocks(weight: Tensor, table: bool = False) -> BlockWeight:
    """A float weight, [rows, columns], rounded to 8 bits with a scale for each block."""
    int8 = find_format("int8")
    assert int8.onnx is not None
    size = _block_size(weight.shape[1], int8.onnx.bits, None, table=False)
    assert size is not None
    codes, scales = int8.quantize(weight.float(), Granularity("group", size))
    return _in_blocks(codes, scales, int8.onnx, size, table)


def _block_size(columns: int, bits: int, sharing: int | None, table: bool) -> int | None:
    """The size of block that makes the smallest file; the larger of two alike."""
    if sharing is None and table:
        # A table may have one block for a whole row, and rows are not filled up.
        return max(SMALLEST, 1 << (columns - 1).bit_length())
    fitting = [size for size in FAST if sharing is None or sharing % size == 0]
    if not fitting and sharing is not None and sharing % SMALLEST == 0:
        return SMALLEST
    return min(fitting, key=lambda size: -(-columns // size) * (size * bits // 8 + 4), default=None)


def _in_blocks(codes: Tensor, scales: Tensor, form: OnnxForm, size: int, table: bool) -> BlockWeight:
    rows, columns = codes.shape
    filled = codes if table else torch.nn.functional.pad(codes, (0, -columns % size))
    packed = pack(filled, form.layout)
    if not table:
        packed = packed.view(rows, -(-columns // size), size * form.bits // 8)
    return BlockWeight(packed, scales.float().contiguous(), form, size, columns)
