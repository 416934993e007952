"""Codes and scales in the order in which the kernels read them, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from slimformer.errors import FormatError
from slimformer.formats import pack
from slimformer.runtime.checkpoint import rule_of
from slimformer.runtime.native import kernels

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.formats import Layout, PackedWeight
    from slimformer.operators.registered import Weight

#: The kernels' panels have groups of a multiple of so many columns.
COLUMNS = 16


@dataclass(frozen=True)
class Panels:
    """A weight as the operators take it. Called, it gives the bytes of its layout again, as a file has them.

    Args:
        panels: uint8, the codes.
        scales: float32, [groups, rows and some more].
        rows: Rows of the weight.
        columns: Columns of it.
        group: Columns that share a scale.
        layout: How the codes lie in a file.
    """

    panels: Tensor
    scales: Tensor
    rows: int
    columns: int
    group: int
    layout: Layout

    @property
    def weight(self) -> Weight:
        """The arguments of an operator."""
        return self.panels, self.scales, self.rows, self.columns, list(rule_of(self.layout)), self.group

    def __call__(self) -> Tensor:
        """The codes in the bytes of their layout, uint8 [rows, bytes]."""
        codes: Tensor = torch.ops.slimformer.codes(*self.weight)
        return pack(codes, self.layout)


def refusal(packed: PackedWeight) -> str | None:
    """Why the kernels do not compute with a packed weight; None where they do."""
    group = packed.group_size
    reasons = {
        "codes that stand for values of their own": packed.format.values is not None,
        f"groups of {group}": group is not None and group < packed.columns and group % COLUMNS != 0,
        f"scales in {str(packed.scales.dtype).removeprefix('torch.')}": packed.scales.dtype != torch.float32,
        f"weights on {packed.scales.device.type}": packed.scales.device.type != "cpu",
        "no weights": not packed.scales.numel() or not packed.columns,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


def _has_other_bytes(codes: Tensor, layout: Layout) -> bool:
    """Whether units of a layout may be none that digits make: 3^5 of 256 bytes are."""
    units = layout.base**layout.digits
    return units < 256**layout.bytes and (layout.bytes > 1 or int(codes.max()) >= units)


def panels_of(packed: PackedWeight) -> Panels:
    """A packed weight in the order of the kernels.

    Raises:
        FormatError: Where its bytes are no codes of its layout.
    """
    codes, layout, columns = packed.codes, packed.layout, packed.columns
    if _has_other_bytes(codes, layout):
        packed.unpack()  # which says what is wrong, if anything is
    group = columns if packed.group_size is None else packed.group_size
    scales = packed.scales.expand(len(codes), -1).contiguous()
    try:
        panels, scales_there = kernels().make_panels(
            codes.contiguous().numpy(), scales.numpy(), columns, group, rule_of(layout)
        )
    except (kernels().InputError, TypeError) as error:
        packed.unpack()
        raise FormatError(f"the kernels do not read the weight: {error}") from error
    return Panels(torch.from_numpy(panels), torch.from_numpy(scales_there), len(codes), columns, group, layout)
