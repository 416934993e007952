"""What all views share that show a weight as a few levels: codes, scales, and who shares a scale.

What is trained is what is stored: a view's `codes` are the very numbers its `forward` multiplies by the scales.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from slimformer.errors import ViewError
from slimformer.views.straight_through import pass_inside, readable, remember
from slimformer.views.view import BELOW_SLICE, View

Per = Literal["matrix", "row", "group"]


@dataclass(frozen=True)
class Sharing:
    """Which weights share a scale: all of a matrix, each row, or each group of neighbours in a row.

    A row need not be a multiple of the group; its last group is then shorter.
    """

    per: Per = "matrix"
    group_size: int | None = None

    def __post_init__(self) -> None:
        if self.per not in get_args(Per):
            raise ViewError(f"`per` is `{self.per}`; a weight scale is shared per `matrix`, `row` or `group`")
        if (self.per == "group") != (self.group_size is not None):
            raise ViewError(
                f"`per` is `{self.per}` and `group_size` is {self.group_size}; groups, and only they, need a size"
            )
        if self.group_size is not None and self.group_size < 1:
            raise ViewError(f"`group_size` is {self.group_size}; give 1 or more weights")

    def fold(self, weight: Tensor) -> Tensor:
        """What shares a scale, along the last axis; a last group that is shorter is filled up with zeros."""
        if self.per == "matrix":
            return weight.reshape(*[1] * (weight.dim() - 1), -1)
        if self.group_size is None:
            return weight
        short = -weight.shape[-1] % self.group_size
        padded = torch.nn.functional.pad(weight, (0, short)) if short else weight
        grouped: Tensor = padded.unflatten(-1, (-1, self.group_size))
        return grouped

    def counts(self, weight: Tensor) -> int | Tensor:
        """How many weights of each unit that `fold` makes are real, for the last axis kept."""
        if self.group_size is None:
            return weight.numel() if self.per == "matrix" else weight.shape[-1]
        columns = weight.shape[-1]
        starts = torch.arange(0, columns, self.group_size, device=weight.device)
        return (columns - starts).clamp(max=self.group_size)[:, None]

    def unfold(self, folded: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of `fold`."""
        if self.group_size is None:
            return folded.reshape(shape)
        return folded.flatten(-2)[..., : shape[-1]]

    def spread(self, scales: Tensor, columns: int) -> Tensor:
        """Scales as they are stored, one per unit, as scales that broadcast to the weight."""
        if self.group_size is None:
            return scales
        return scales.repeat_interleave(self.group_size, dim=-1)[..., :columns]


#: Turns units of weights, and how many of each count, into whole numbers (as floats, in memory of their own) and one
#: scale for each unit.
Levels = Callable[[Tensor, "int | Tensor"], tuple[Tensor, Tensor]]


def codes_and_scales(weight: Tensor, levels: Levels, sharing: Sharing, clip: float | None) -> tuple[Tensor, Tensor]:
    """Codes as int8, of the weight's shape, and one scale for all that share it, in the weight's precision."""
    codes, scales = _levels(weight, levels, sharing, clip)
    kept = scales if sharing.group_size is None else scales.squeeze(-1)
    return sharing.unfold(codes, weight.shape).to(torch.int8), kept


def _levels(weight: Tensor, levels: Levels, sharing: Sharing, clip: float | None) -> tuple[Tensor, Tensor]:
    clipped = weight.detach() if clip is None else weight.detach().clamp(-clip, clip)
    # Sums of half-precision numbers lose too much; everything else keeps its own precision. However a weight lies in
    # memory, its sums have to come out the same to the last bit.
    units = sharing.fold(clipped.to(torch.promote_types(weight.dtype, torch.float32))).contiguous()
    # Mixed precision would make sums of half-precision numbers after all.
    with torch.autocast(weight.device.type, enabled=False):
        codes, scales = levels(units, sharing.counts(weight))
    return codes, finite(scales).to(weight.dtype)


def finite(scales: Tensor) -> Tensor:
    """Scales as they are, or an error where a weight is no number."""
    if readable(scales) and not bool(torch.isfinite(scales).all()):
        raise ViewError(
            "a weight that is to be quantized holds NaN or infinity; the model has diverged: lower `--lr`, or "
            "check the checkpoint"
        )
    return scales


class QuantizedView(View):
    """Shows a weight as codes times scales, with a straight-through gradient.

    Args:
        per: What shares a scale: the "matrix", each "row", or each "group" of a row.
        clip: Bound on `|w|`, beyond which no gradient passes; None for none.
        group_size: Weights of a group.
    """

    def __init__(self, per: Per = "matrix", clip: float | None = 2.5, group_size: int | None = None) -> None:
        super().__init__()
        self.sharing = Sharing(per, group_size)
        self.clip = clip

    @property
    def per(self) -> Per:
        """What shares a scale."""
        return self.sharing.per

    @abstractmethod
    def levels(self, units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
        """Whole numbers for units of weights (last axis), in memory of their own, and a scale for each unit."""

    def codes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Codes as int8, of the weight's shape, and one scale for all that share it.

        The scales are [1, 1] for a matrix, [rows, 1] for rows and [rows, groups] for groups; `spread` makes the last
        broadcast to the codes.
        """
        return codes_and_scales(weight, self.levels, self.sharing, self.clip)

    def spread(self, scales: Tensor, columns: int) -> Tensor:
        """Scales that broadcast to codes of so many columns."""
        return self.sharing.spread(scales, columns)

    def forward(self, weight: Tensor) -> Tensor:
        """Quantize the weight."""
        return through(weight, self.levels, self.sharing, self.clip)

    def spec(self) -> dict[str, Any]:
        """Settings of this view."""
        grouped = {} if self.sharing.group_size is None else {"group_size": self.sharing.group_size}
        return {"kind": self.kind, "per": self.per, "clip": self.clip, **grouped}

    def after(self, earlier: View) -> str | None:
        """A quantized view reads whole rows, so a slice cannot come first; and a weight is quantized once."""
        if isinstance(earlier, QuantizedView):
            return f"the weight is already under a {earlier.kind} view"
        return BELOW_SLICE if earlier.kind == "slice" else super().after(earlier)

    def extra_repr(self) -> str:
        """Show the settings in the model's print-out."""
        grouped = "" if self.sharing.group_size is None else f", group_size={self.sharing.group_size}"
        return f"per={self.per!r}, clip={self.clip}{grouped}"


def through(weight: Tensor, levels: Levels, sharing: Sharing, clip: float | None) -> Tensor:
    """Codes times scales, with the gradient of the weight itself inside ±clip."""
    shown: Tensor = _Through.apply(weight, levels, sharing, clip)  # type: ignore[no-untyped-call]
    return shown


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, levels: Levels, sharing: Sharing, clip: float | None) -> Tensor:
        codes, scales = _levels(weight, levels, sharing, remember(ctx, weight, clip))
        # A new tensor of a large table costs more than the arithmetic, so the codes become the weight where they are.
        shown = codes.mul_(scales.to(codes.dtype))
        return sharing.unfold(shown, weight.shape).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return pass_inside(ctx, gradient), None, None, None
