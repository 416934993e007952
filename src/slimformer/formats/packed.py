"""One weight as it lies packed in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimformer.formats.packing import pack, unpack

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.formats.number import NumberFormat
    from slimformer.formats.packing import Layout


@dataclass(frozen=True)
class PackedWeight:
    """One weight, several codes to a byte.

    Args:
        format: What the codes are.
        layout: How they lie in bytes; one of the format's.
        codes: uint8, [out, bytes].
        scales: [1, 1], [out, 1] or [out, groups], in the precision of the weight.
        columns: Codes of a row.
        group_size: Columns that share a scale; None for all.
        transposed: Whether the module holds the weight as [in, out].
    """

    format: NumberFormat
    layout: Layout
    codes: Tensor
    scales: Tensor
    columns: int
    group_size: int | None = None
    transposed: bool = False

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

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Codes and scales by the names they have in a file, which tell the layout."""
        return {f"{name}.{self.layout.name}": self.codes, f"{name}.{self.layout.name}_scales": self.scales}
