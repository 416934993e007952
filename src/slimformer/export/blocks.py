"""Weights as `MatMulNBits` reads them: whole blocks of a row, a scale for each, codes of 2, 4 or 8 bits.

The operator allows any width; only a block must be a power of two. The last block of a row is filled up with codes of
zero, which change no product. There are no zero points: the one that is left out is the middle, where the layouts of
`slimformer.runtime` have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.errors import ArtifactError
from slimformer.runtime import layout_of, pack, unpack
from slimformer.views import IntegerView

if TYPE_CHECKING:
    from slimformer.runtime import PackedWeight

#: Layout a weight is packed in → the fewest bits of the operator that hold its codes.
BITS = {"binary": 2, "ternary": 2, "ternary-small": 2, "int2": 4, "int4": 4, "int8": 8}
#: Bits → the layout whose bytes are those of the operator.
LAYOUT = {2: "ternary", 4: "int4", 8: "int8"}
#: Block sizes with kernels that compute in int8; the operator also takes blocks of 16, and computes those in float.
FAST = (128, 64, 32)
SMALLEST = 16


@dataclass(frozen=True)
class BlockWeight:
    """One weight in blocks.

    Args:
        codes: uint8, [rows, blocks, bytes of a block], or [rows, bytes] for a table that is only looked up.
        scales: float32, [rows, blocks].
        bits: Bits of a code.
        block_size: Codes of a block.
        columns: Codes of a row that count.
    """

    codes: Tensor
    scales: Tensor
    bits: int
    block_size: int
    columns: int

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return self.scales.shape[0]

    def weight(self) -> Tensor:
        """The float weight that this stands for, [rows, columns]."""
        packed = self.codes.flatten(1)
        codes = unpack(packed, LAYOUT[self.bits], packed.shape[-1] * layout_of(LAYOUT[self.bits]).per_byte)
        return codes[:, : self.columns] * self.scales.repeat_interleave(self.block_size, dim=1)[:, : self.columns]


def packed_blocks(weight: PackedWeight, name: str, table: bool = False) -> BlockWeight:
    """The blocks of a packed weight, with its codes and scales as they are.

    Args:
        weight: The packed weight.
        name: What to call it in an error.
        table: Whether it is only looked up, row by row, and never multiplied.

    Raises:
        ArtifactError: Where no block fits into the groups that share a scale.
    """
    bits = BITS[weight.layout]
    sharing = weight.group_size if weight.group_size is not None and weight.group_size < weight.columns else None
    size = _block_size(weight.columns, bits, sharing, table)
    if size is None:
        raise ArtifactError(
            f"`{name}` has one scale for {sharing} weights, and a block of ONNX is a power of two from {SMALLEST} on; "
            "quantize with a group size that is a multiple of 32, or export with numbers `float` or `int8`"
        )
    firsts = torch.arange(0, weight.columns, size) // (sharing or weight.columns)
    scales = weight.scales.expand(len(weight.codes), -1)[:, firsts]
    return _in_blocks(weight.unpack(), scales, bits, size, table)


def rounded_blocks(weight: Tensor, table: bool = False) -> BlockWeight:
    """A float weight, [rows, columns], rounded to 8 bits with a scale for each block."""
    size = _block_size(weight.shape[1], 8, None, table=False)
    assert size is not None
    codes, scales = IntegerView(8, "group", clip=None, group_size=size).codes(weight.float())
    return _in_blocks(codes, scales, 8, size, table)


def _block_size(columns: int, bits: int, sharing: int | None, table: bool) -> int | None:
    """The size of block that makes the smallest file; the larger of two alike."""
    if sharing is None and table:
        # A table may have one block for a whole row, and rows are not filled up.
        return max(SMALLEST, 1 << (columns - 1).bit_length())
    fitting = [size for size in FAST if sharing is None or sharing % size == 0]
    if not fitting and sharing is not None and sharing % SMALLEST == 0:
        return SMALLEST
    return min(fitting, key=lambda size: -(-columns // size) * (size * bits // 8 + 4), default=None)


def _in_blocks(codes: Tensor, scales: Tensor, bits: int, size: int, table: bool) -> BlockWeight:
    rows, columns = codes.shape
    filled = codes if table else torch.nn.functional.pad(codes, (0, -columns % size))
    packed = pack(filled, LAYOUT[bits])
    if not table:
        packed = packed.view(rows, -(-columns // size), size * bits // 8)
    return BlockWeight(packed, scales.float().contiguous(), bits, size, columns)
