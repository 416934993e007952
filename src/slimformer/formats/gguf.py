"""Blocks of GGUF: a few codes with one half-precision scale, as llama.cpp lays them out.

A row is cut into blocks of a fixed size, and each holds its scale as float16 and its codes in bytes. Where `apart` is
1, a byte holds neighbours; else the weights of one byte lie that far apart, so that a vector register unpacks them in
order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.errors import FormatError
from slimformer.formats.layout import BINARY, INT4, Layout
from slimformer.formats.packing import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes of the scale of a block, and the type it has.
SCALE_BYTES, SCALE = 2, torch.float16


@dataclass(frozen=True)
class GgufForm:
    """A type of tensor in a GGUF file that is made of blocks.

    Args:
        name: What llama.cpp calls it.
        number: Its number in `ggml_type`.
        file_type: What `general.file_type` is of a file whose matrices are mostly of this type.
        block: Weights of a block.
        layout: How codes lie in bytes; None where a byte is a code in two's complement.
        apart: How far the weights of one byte are from one another.
        scale_last: Whether the scale comes after the codes.
    """

    name: str
    number: int
    file_type: int
    block: int
    layout: Layout | None
    apart: int = 1
    scale_last: bool = False

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of a block."""
        return self.block if self.layout is None else self.layout.bytes_for(self.block)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, its scale included."""
        return self.code_bytes + SCALE_BYTES

    def holds(self, columns: int, group_size: int | None = None) -> bool:
        """Whether rows of so many weights are whole blocks, none of which would need two scales."""
        shared = columns if group_size is None else min(group_size, columns)
        return columns % self.block == 0 and shared % self.block == 0

    def spread(self, scales: Tensor, rows: int, columns: int, group_size: int | None = None) -> Tensor:
        """Scales as a weight has them, [1 or rows, 1 or groups], as one for each block: float16, [rows, blocks].

        Raises:
            FormatError: Where a scale is beyond the range of float16.
        """
        shared = columns if group_size is None else min(group_size, columns)
        firsts = torch.arange(0, columns, self.block) // shared
        of_blocks = scales.float().expand(rows, -1)[:, firsts]
        largest = float(scales.abs().max()) if scales.numel() else 0.0
        if largest > torch.finfo(SCALE).max:
            raise FormatError(
                f"a scale is {largest:.3g}, and those of GGUF are half-precision numbers of at most "
                f"{torch.finfo(SCALE).max:.0f}; export with numbers `float` or `bfloat16`"
            )
        return of_blocks.to(SCALE)

    def pack(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Blocks of a weight: uint8, [rows, bytes].

        Args:
            codes: int8, [rows, columns].
            scales: float16, [rows, blocks].
        """
        rows, columns = codes.shape
        blocks = columns // self.block
        packed = self._packed(codes).view(rows, blocks, self.code_bytes)
        of_blocks = scales.contiguous().view(torch.uint8).view(rows, blocks, SCALE_BYTES)
        parts = [packed, of_blocks] if self.scale_last else [of_blocks, packed]
        return torch.cat(parts, dim=-1).flatten(1)

    def unpack(self, packed: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """The inverse of `pack`: codes and scales."""
        rows, blocks = len(packed), columns // self.block
        parts = packed.reshape(rows, blocks, self.block_bytes)
        at = self.code_bytes if self.scale_last else 0
        scales = parts[..., at : at + SCALE_BYTES].contiguous().view(SCALE).view(rows, blocks)
        codes = parts[..., : self.code_bytes] if self.scale_last else parts[..., SCALE_BYTES:]
        return self._unpacked(codes.contiguous(), rows, columns), scales

    def weight(self, packed: Tensor, columns: int) -> Tensor:
        """The float32 weight that packed blocks stand for, [rows, columns]."""
        codes, scales = self.unpack(packed, columns)
        return codes * scales.float().repeat_interleave(self.block, dim=1)

    def _packed(self, codes: Tensor) -> Tensor:
        if self.layout is None:
            return codes.contiguous().view(torch.uint8)
        near = codes.reshape(-1, self.layout.digits, self.apart).mT.reshape(-1, self.layout.digits)
        return pack(near, self.layout)

    def _unpacked(self, packed: Tensor, rows: int, columns: int) -> Tensor:
        if self.layout is None:
            return packed.view(torch.int8).view(rows, columns)
        near = unpack(packed.view(-1, self.layout.bytes), self.layout, self.layout.digits)
        return near.reshape(-1, self.apart, self.layout.digits).mT.reshape(rows, columns)


_TWO_BITS = Layout("gguf-two-bits", base=4, digits=4, lowest=-1)
#: Codes from -1 to 2, of which a ternary weight uses three; a byte of TQ2_0 holds weights that lie 32 apart.
TQ2_0 = GgufForm("TQ2_0", 35, 37, 256, _TWO_BITS, apart=32, scale_last=True)
Q2_0 = GgufForm("Q2_0", 42, 41, 64, _TWO_BITS)
#: One bit, -1 or 1.
Q1_0 = GgufForm("Q1_0", 41, 40, 128, BINARY)
Q4_0 = GgufForm("Q4_0", 2, 2, 32, INT4, apart=16)
Q8_0 = GgufForm("Q8_0", 8, 7, 32, None)


def smallest(forms: Sequence[GgufForm], columns: int, group_size: int | None = None) -> GgufForm | None:
    """The form of fewest bytes that holds rows of so many weights; None where none does."""
    fitting = (form for form in forms if form.holds(columns, group_size))
    return min(fitting, key=lambda form: form.block_bytes / form.block, default=None)
