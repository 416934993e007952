"""The one packer: codes of a few bits into bytes and back, in any of the layouts of `formats.layout`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slimformer.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slimformer.formats.layout import Layout
    from slimformer.formats.number import NumberFormat


def pack(codes: Tensor, layout: Layout) -> Tensor:
    """Pack codes along their last axis: int8 [..., columns] → uint8 [..., bytes].

    Args:
        codes: Codes of the layout, or booleans for 0 and 1; any shape with at least one axis, any number of columns.
        layout: How they are to lie.

    Raises:
        FormatError: Where a code is none of the layout.
    """
    if codes.dim() == 0 or codes.dtype.is_floating_point:
        raise FormatError(f"codes are {codes.dtype} of shape {list(codes.shape)}; give whole numbers with an axis")
    digits = _digits(codes, layout)
    if _is_bits(layout):
        return torch.from_numpy(np.packbits(digits.cpu().numpy(), axis=-1, bitorder="little")).to(codes.device)
    short = -codes.shape[-1] % layout.digits
    padded = torch.nn.functional.pad(digits, (0, short), value=layout.filling)
    units = -(-codes.shape[-1] // layout.digits)
    grouped = padded.view(*codes.shape[:-1], units, layout.digits)
    packed = torch.zeros(grouped.shape[:-1], dtype=_wide(layout), device=codes.device)
    for place in reversed(range(layout.digits)):
        packed = packed * layout.base + grouped[..., place]
    if layout.bytes == 1:
        return packed.to(torch.uint8)
    parts = [(packed >> 8 * place & 255).to(torch.uint8) for place in range(layout.bytes)]
    return torch.stack(parts, dim=-1).flatten(-2)


def unpack(packed: Tensor, layout: Layout, columns: int) -> Tensor:
    """The inverse of `pack`: uint8 [..., bytes] → int8 [..., columns].

    Args:
        packed: What `pack` gave.
        layout: The layout it was packed in.
        columns: Codes of a row.

    Raises:
        FormatError: Where the bytes cannot be those of so many codes.
    """
    if packed.dtype != torch.uint8 or packed.dim() == 0 or packed.shape[-1] != layout.bytes_for(columns):
        raise FormatError(
            f"{columns} codes of layout `{layout.name}` fill {layout.bytes_for(columns)} bytes a row, and these are "
            f"{packed.dtype} of shape {list(packed.shape)}; the file is damaged or of another layout"
        )
    if _is_bits(layout):
        return _unpack_bits(packed, layout, columns)
    if layout.bytes == 1:
        table, valid = (each.to(packed.device) for each in _table(layout))
        places = packed.reshape(-1).int()
        codes = table.index_select(0, places)
        damaged = not layout.is_full and not bool(valid.index_select(0, places).all())
    else:
        codes, real = _codes(_values(packed, layout), layout)
        damaged = not layout.is_full and not bool(real.all())
    if damaged:
        raise FormatError(
            f"the bytes hold no codes of layout `{layout.name}`; the file is damaged or of another layout"
        )
    units = packed.shape[-1] // layout.bytes
    return codes.view(*packed.shape[:-1], units * layout.digits)[..., :columns].contiguous()


def _is_bits(layout: Layout) -> bool:
    """Whether a byte is eight bits, which NumPy packs and unpacks faster than a table."""
    return layout.base == 2 and layout.digits == 8


def _unpack_bits(packed: Tensor, layout: Layout, columns: int) -> Tensor:
    bits = np.unpackbits(packed.cpu().numpy(), axis=-1, count=columns, bitorder="little")
    codes = torch.from_numpy(bits).view(torch.int8).to(packed.device)
    if layout.stride != 1:
        codes.mul_(layout.stride)
    return codes.add_(layout.lowest) if layout.lowest else codes


def _digits(codes: Tensor, layout: Layout) -> Tensor:
    """The digit of each code, checked."""
    if codes.dtype == torch.bool:
        if _is_bits(layout) and layout.lowest == 0:
            return codes
        codes = codes.to(torch.uint8)
    digits, rest = _divide(codes.to(_wide(layout)) - layout.lowest, layout.stride)
    allowed = layout.allowed
    if codes.numel() and (int(codes.min()) < allowed[0] or int(codes.max()) > allowed[-1] or bool(rest.any())):
        wrong = next(code for code in codes.flatten().tolist() if code not in allowed)
        raise FormatError(f"`{wrong}` is no code of layout `{layout.name}`; it holds {_range(allowed)}")
    return digits


@cache
def _table(layout: Layout) -> tuple[Tensor, Tensor]:
    """The codes each of the 256 bytes holds, int8 [256, digits], and whether all of them are allowed."""
    return _codes(torch.arange(256, dtype=torch.int16), layout)


def _values(packed: Tensor, layout: Layout) -> Tensor:
    """Units of several bytes as whole numbers."""
    places = packed.reshape(-1, layout.bytes).to(_wide(layout))
    values = places[:, 0]
    for place in range(1, layout.bytes):
        values = values + (places[:, place] << 8 * place)
    return values


def _codes(values: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The codes of units, int8 [units, digits], and whether those of a unit are all allowed."""
    codes = torch.empty(*values.shape, layout.digits, dtype=torch.int8, device=values.device)
    rest = values
    for place in range(layout.digits):
        rest, digit = _divide(rest, layout.base)
        codes[..., place] = digit * layout.stride + layout.lowest
    allowed = layout.allowed
    return codes, (rest == 0) & (codes >= allowed[0]).all(-1) & (codes <= allowed[-1]).all(-1)


def _wide(layout: Layout) -> torch.dtype:
    """A type that holds a unit and everything on the way to it."""
    return torch.int16 if layout.bytes == 1 else torch.int32 if layout.bytes < 4 else torch.int64


def _divide(numbers: Tensor, by: int) -> tuple[Tensor, Tensor]:
    quotient = numbers.div(by, rounding_mode="floor")
    return quotient, numbers - quotient * by


def _range(codes: range) -> str:
    return ", ".join(map(str, codes)) if len(codes) <= 4 else f"{codes[0]} to {codes[-1]}"


@dataclass(frozen=True)
class PackedWeight:
    """One weight, several codes to a byte.

    Args:
        format: What the codes are.
        layout: How they lie in bytes; one of the format's.
        held: The codes, uint8, [out, bytes]; or what gives them, where they are held in another order.
        scales: [1, 1], [out, 1] or [out, groups], in the precision of the weight.
        columns: Codes of a row.
        group_size: Columns that share a scale; None for all.
        transposed: Whether the module holds the weight as [in, out].
    """

    format: NumberFormat
    layout: Layout
    held: Tensor | Callable[[], Tensor]
    scales: Tensor
    columns: int
    group_size: int | None = None
    transposed: bool = False

    @property
    def codes(self) -> Tensor:
        """The codes as they lie in a file, uint8, [out, bytes]."""
        return self.held if isinstance(self.held, Tensor) else self.held()

    @classmethod
    def of(
        cls,
        number_format: NumberFormat,
        codes: Tensor,
        scales: Tensor,
        group_size: int | None = None,
        *,
        transposed: bool = False,
        small: bool = False,
    ) -> PackedWeight:
        """Pack codes, int8 [out, in]; `small` for the layout that takes fewer bytes and more work."""
        layout = number_format.layout(small)
        return cls(number_format, layout, pack(codes, layout), scales, codes.shape[-1], group_size, transposed)

    def unpack(self) -> Tensor:
        """The codes, int8, [out, in]."""
        return unpack(self.codes, self.layout, self.columns)

    def weight(self) -> Tensor:
        """What the model computes with, as its module holds it."""
        weight = self.format.dequantize(self.unpack(), self.scales, self.group_size)
        return weight.mT.contiguous() if self.transposed else weight

    def replaced(self, codes: Tensor, scales: Tensor) -> PackedWeight:
        """The same kind of weight with other codes, int8 [out, in], and their scales."""
        packed = pack(codes.contiguous(), self.layout)
        return replace(self, held=packed, scales=scales.contiguous(), columns=codes.shape[-1])

    def masked(self, bits: Tensor) -> PackedWeight:
        """The weight with the code for 0 where a bit, in the shape of the module's weight, is not set."""
        assert self.format.zero is not None
        codes = self.unpack()
        kept = (bits.mT if self.transposed else bits).to(codes.device)
        return self.replaced(codes.where(kept, self.format.zero), self.scales)

    def bytes_at(self, rows: int, columns: int) -> int:
        """Bytes that the first rows and columns take, scales included."""
        groups = 1 if self.group_size is None else -(-columns // self.group_size)
        scales = 1 if len(self.scales) == 1 else rows * min(groups, self.scales.shape[1])
        return rows * self.layout.bytes_for(columns) + scales * self.scales.element_size()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Codes and scales by the names they have in a file, which tell the layout."""
        return {f"{name}.{self.layout.name}": self.codes, f"{name}.{self.layout.name}_scales": self.scales}
