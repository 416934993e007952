"""How codes lie in bytes.

Every layout is a number system: a unit of one or more bytes, the lowest first, holds digits of a base, the first one
lowest, and a digit is `(code - lowest) / stride`. Rows are packed one by one, so that a row can be read without the
ones before it; the last unit of a row is filled up with zeros, which change no product (with the lowest code where a
layout has no zero). Bits of a mask are packed flat, over the whole tensor in its own order.
"""

from __future__ import annotations

from dataclasses import dataclass

from slimformer.errors import FormatError


@dataclass(frozen=True)
class Layout:
    """How codes lie in bytes.

    Args:
        name: What it is called in a file.
        base: Number of digits there are.
        digits: Digits in a unit.
        lowest: The code of digit 0.
        stride: Distance of neighbouring codes.
        bytes: Bytes of a unit.
        codes: The codes that are allowed, where not every digit is one.
    """

    name: str
    base: int
    digits: int
    lowest: int
    stride: int = 1
    bytes: int = 1
    codes: range | None = None

    def __post_init__(self) -> None:
        if self.base**self.digits > 256**self.bytes or self.bytes > 7:
            raise FormatError(
                f"layout `{self.name}` has {self.digits} digits of base {self.base} in {self.bytes} bytes; give a unit "
                "of up to 7 bytes that holds its digits"
            )
        highest = self.lowest + (self.base - 1) * self.stride
        if self.lowest < -128 or highest > 127:
            raise FormatError(
                f"layout `{self.name}` has codes from {self.lowest} to {highest}; give codes from -128 to 127"
            )

    @property
    def allowed(self) -> range:
        """The codes this layout holds."""
        return self.codes or range(self.lowest, self.lowest + self.base * self.stride, self.stride)

    @property
    def filling(self) -> int:
        """The digit that fills up the last unit of a row."""
        return -self.lowest // self.stride if 0 in self.allowed else 0

    @property
    def is_full(self) -> bool:
        """Whether any bytes at all are codes."""
        return self.base**self.digits == 256**self.bytes and self.codes is None

    def bytes_for(self, columns: int) -> int:
        """Bytes of a row of so many codes."""
        return -(-columns // self.digits) * self.bytes


#: Bits of a mask, 0 and 1.
BITS = Layout("bits", base=2, digits=8, lowest=0)
#: Four codes to a byte, as `MatMulNBits` of ONNX Runtime has them: first code in the lowest bits, zero point 2.
TERNARY = Layout("ternary", base=4, digits=4, lowest=-2, codes=range(-1, 2))
#: Five codes to a byte: 3^5 = 243 ≤ 256.
TERNARY_SMALL = Layout("ternary-small", base=3, digits=5, lowest=-1)
#: Two codes, -1 and 1.
BINARY = Layout("binary", base=2, digits=8, lowest=-1, stride=2)
#: Odd codes of two and of three bits; of these, eight lie in three bytes.
INT2 = Layout("int2", base=4, digits=4, lowest=-3, stride=2)
INT3 = Layout("int3", base=8, digits=8, lowest=-7, stride=2, bytes=3)
#: Integers of four and eight bits, as `MatMulNBits` has them: first code in the lowest bits, zero point in the middle.
INT4 = Layout("int4", base=16, digits=2, lowest=-8)
INT8 = Layout("int8", base=256, digits=1, lowest=-128)
