"""Codes of a few bits, several to a byte and back.

Every layout is a number system: a byte holds `per_byte` digits of a base, the first one lowest, and a digit is
`(code - lowest) / stride`. Rows are packed one by one, so that a row can be read without the ones before it; the last
byte of a row is filled up with zeros, which change no product (with the lowest code where a layout has no zero).
Ternary codes of two bits, and integers of four and eight, lie as ONNX has them for `MatMulNBits`: first code in the
lowest bits, zero point in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from slimformer.errors import ArtifactError


@dataclass(frozen=True)
class Layout:
    """How codes lie in bytes.

    Args:
        base: Number of digits there are.
        per_byte: Digits in a byte.
        lowest: The code of digit 0.
        stride: Distance of neighbouring codes.
        codes: The codes that are allowed, where not every digit is one.
    """

    base: int
    per_byte: int
    lowest: int
    stride: int = 1
    codes: range | None = None

    @property
    def allowed(self) -> range:
        """The codes this layout holds."""
        return self.codes or range(self.lowest, self.lowest + self.base * self.stride, self.stride)

    @property
    def filling(self) -> int:
        """The digit that fills up the last byte of a row."""
        return -self.lowest // self.stride if 0 in self.allowed else 0

    def bytes_for(self, columns: int) -> int:
        """Bytes of a row of so many codes."""
        return -(-columns // self.per_byte)


#: Name → layout. Ternary codes have two: four to a byte for speed, five to a byte (3^5 = 243 ≤ 256) for size.
LAYOUTS: dict[str, Layout] = {
    "binary": Layout(base=2, per_byte=8, lowest=-1, stride=2),
    "ternary": Layout(base=4, per_byte=4, lowest=-2, codes=range(-1, 2)),
    "ternary-small": Layout(base=3, per_byte=5, lowest=-1),
    "int2": Layout(base=4, per_byte=4, lowest=-3, stride=2),
    "int4": Layout(base=16, per_byte=2, lowest=-8),
    "int8": Layout(base=256, per_byte=1, lowest=-128),
}


def pack(codes: Tensor, layout: str) -> Tensor:
    """Pack codes along their last axis: int8 [..., columns] → uint8 [..., bytes].

    Args:
        codes: Codes of the layout; any shape with at least one axis, any number of columns.
        layout: A name in `LAYOUTS`.

    Raises:
        ArtifactError: Where a code is none of the layout.
    """
    kind = layout_of(layout)
    if codes.dim() == 0 or codes.dtype.is_floating_point:
        raise ArtifactError(f"codes are {codes.dtype} of shape {list(codes.shape)}; give whole numbers with an axis")
    digits, rest = _divide(codes.to(torch.int16) - kind.lowest, kind.stride)
    _check(codes, rest, kind, layout)
    short = -codes.shape[-1] % kind.per_byte
    digits = torch.nn.functional.pad(digits, (0, short), value=kind.filling)
    grouped = digits.view(*codes.shape[:-1], kind.bytes_for(codes.shape[-1]), kind.per_byte)
    packed = torch.zeros(grouped.shape[:-1], dtype=torch.int16, device=codes.device)
    for place in reversed(range(kind.per_byte)):
        packed = packed * kind.base + grouped[..., place]
    return packed.to(torch.uint8)


def unpack(packed: Tensor, layout: str, columns: int) -> Tensor:
    """The inverse of `pack`: uint8 [..., bytes] → int8 [..., columns].

    Args:
        packed: What `pack` gave.
        layout: The layout it was packed in.
        columns: Codes of a row.

    Raises:
        ArtifactError: Where the bytes cannot be those of so many codes.
    """
    kind = layout_of(layout)
    if packed.dtype != torch.uint8 or packed.dim() == 0 or packed.shape[-1] != kind.bytes_for(columns):
        raise ArtifactError(
            f"{columns} codes of layout `{layout}` fill {kind.bytes_for(columns)} bytes a row, and these are "
            f"{packed.dtype} of shape {list(packed.shape)}; the file is damaged or of another layout"
        )
    table, valid = (each.to(packed.device) for each in _meanings(layout))
    places = packed.reshape(-1).int()
    if not bool(valid.index_select(0, places).all()):
        raise ArtifactError(f"the bytes hold no codes of layout `{layout}`; the file is damaged or of another layout")
    codes = table.index_select(0, places).view(*packed.shape[:-1], packed.shape[-1] * kind.per_byte)
    return codes[..., :columns].contiguous()


def layout_for(kind: str, bits: int | None = None, small: bool = False) -> str:
    """Name of the layout for codes of a quantized view.

    Args:
        kind: "ternary", "binary" or "integer", as `views.QuantizedWeight` has it.
        bits: Bits of an integer code.
        small: Five ternary codes to a byte instead of four.
    """
    name = f"int{bits}" if kind == "integer" else f"{kind}-small" if small and kind == "ternary" else kind
    layout_of(name)
    return name


def layout_of(name: str) -> Layout:
    """Look a layout up by its name."""
    if name not in LAYOUTS:
        raise ArtifactError(f"there is no layout `{name}`; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


@cache
def _meanings(layout: str) -> tuple[Tensor, Tensor]:
    """The codes each of the 256 bytes holds, int8 [256, codes of a byte], and whether all of them are allowed."""
    kind = layout_of(layout)
    rest = torch.arange(256, dtype=torch.int16)
    digits = []
    for _ in range(kind.per_byte):
        rest, digit = _divide(rest, kind.base)
        digits.append(digit)
    codes = torch.stack(digits, dim=-1) * kind.stride + kind.lowest
    allowed = kind.allowed
    valid = (rest == 0) & (codes >= allowed[0]).all(-1) & (codes <= allowed[-1]).all(-1)
    return codes.to(torch.int8), valid


def _divide(numbers: Tensor, by: int) -> tuple[Tensor, Tensor]:
    quotient = numbers.div(by, rounding_mode="floor")
    return quotient, numbers - quotient * by


def _check(codes: Tensor, rest: Tensor, kind: Layout, layout: str) -> None:
    if codes.numel() == 0:
        return
    allowed = kind.allowed
    if int(codes.min()) < allowed[0] or int(codes.max()) > allowed[-1] or bool(rest.any()):
        wrong = next(code for code in codes.flatten().tolist() if code not in allowed)
        raise ArtifactError(f"`{wrong}` is no code of layout `{layout}`; it holds {_named(allowed)}")


def _named(codes: range) -> str:
    return ", ".join(map(str, codes)) if len(codes) <= 4 else f"{codes[0]} to {codes[-1]}"
