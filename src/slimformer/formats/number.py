"""Number formats: levels of a few bits, what shares a scale, and which codes stand for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from slimformer.errors import FormatError
from slimformer.registry import FORMATS

if TYPE_CHECKING:
    from slimformer.formats.gguf import GgufForm
    from slimformer.formats.layout import Layout

Shared = Literal["matrix", "row", "group"]


@dataclass(frozen=True)
class Granularity:
    """What shares a scale: all of a matrix, each row, or each group of neighbours in a row.

    A row need not be a multiple of the group; its last group is then shorter.

    Args:
        name: "matrix", "row" or "group".
        group_size: Weights of a group; groups, and only they, have one.
    """

    name: Shared = "row"
    group_size: int | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(Shared):
            raise FormatError(
                f"`granularity` is `{self.name}`; a scale is shared by a `matrix`, a `row` or a `group` of weights"
            )
        if (self.name == "group") != (self.group_size is not None):
            raise FormatError(
                f"`granularity` is `{self.name}` and `group_size` is {self.group_size}; groups, and only they, need "
                "a size"
            )
        if self.group_size is not None and self.group_size < 1:
            raise FormatError(f"`group_size` is {self.group_size}; give 1 or more weights")

    def fold(self, weight: Tensor) -> Tensor:
        """Units that share a scale, along the last axis; a last group that is shorter is filled up with zeros."""
        if self.name == "matrix":
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
            return weight.numel() if self.name == "matrix" else weight.shape[-1]
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


#: Turns units of weights (last axis), and how many of each count, into codes (as floats, in memory of their own) and
#: one scale for each unit.
Levels = Callable[[Tensor, "int | Tensor"], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class OnnxForm:
    """How the operators `MatMulNBits` and `GatherBlockQuantized` of ONNX Runtime hold the codes of a format.

    Args:
        bits: Bits of a code; the fewest that hold all of them with the zero point in the middle.
        layout: The layout whose bytes are those of the operator.
    """

    bits: int
    layout: Layout


@dataclass(frozen=True)
class NumberFormat:
    """A few levels that stand for a weight: `weight ≈ value of its code x scale`.

    Args:
        name: The name it is registered by.
        codes: The codes it uses.
        levels: Turns weights into codes and scales.
        fast: The layout it is stored in.
        small: A layout with fewer bytes and more work, where there is one.
        onnx: How it is exported as it is; None where it cannot be.
        values: What each code stands for before the scale, in their order; None where that is the code itself, as
            operators of ONNX and integer kernels need it.
        gguf: The types of tensor in a GGUF file that hold its codes as they are.
    """

    name: str
    codes: range
    levels: Levels
    fast: Layout
    small: Layout | None = None
    onnx: OnnxForm | None = None
    values: tuple[float, ...] | None = None
    gguf: tuple[GgufForm, ...] = ()

    def __post_init__(self) -> None:
        if self.values is not None and len(self.values) != len(self.codes):
            raise FormatError(
                f"format `{self.name}` has {len(self.codes)} codes and {len(self.values)} values; give one for each"
            )

    @property
    def zero(self) -> int | None:
        """The code that stands for 0; None where none does."""
        values = self.codes if self.values is None else self.values
        return next((code for code, value in zip(self.codes, values, strict=True) if value == 0), None)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts it can be stored in."""
        return (self.fast,) if self.small is None else (self.fast, self.small)

    def layout(self, small: bool = False) -> Layout:
        """The layout for speed or, where there is one, for size."""
        return self.small if small and self.small is not None else self.fast

    def encode(self, weight: Tensor, granularity: Granularity, clip: float | None = None) -> tuple[Tensor, Tensor]:
        """Codes as floats and their scales, both folded into the units that share a scale.

        Args:
            weight: [out, in].
            granularity: What shares a scale.
            clip: Bound on `|w|`; None for none.

        Raises:
            FormatError: On the CPU, where a weight is NaN or infinite.
        """
        clipped = weight.detach() if clip is None else weight.detach().clamp(-clip, clip)
        # Sums of half-precision numbers lose too much; everything else keeps its own precision. However a weight lies
        # in memory, its sums have to come out the same to the last bit.
        units = granularity.fold(clipped.to(torch.promote_types(weight.dtype, torch.float32))).contiguous()
        # Mixed precision would make sums of half-precision numbers after all.
        with torch.autocast(weight.device.type, enabled=False):
            codes, scales = self.levels(units, granularity.counts(weight))
        return codes, _finite(scales).to(weight.dtype)

    def quantize(self, weight: Tensor, granularity: Granularity, clip: float | None = None) -> tuple[Tensor, Tensor]:
        """Codes as int8, of the weight's shape, and one scale for all that share it, in the weight's precision.

        The scales are [1, 1] for a matrix, [rows, 1] for rows and [rows, groups] for groups. The arguments are those
        of `encode`.
        """
        codes, scales = self.encode(weight, granularity, clip)
        kept = scales if granularity.group_size is None else scales.squeeze(-1)
        return granularity.unfold(codes, weight.shape).to(torch.int8), kept

    def nearest(self, units: Tensor, scales: Tensor) -> Tensor:
        """The codes, as floats, whose levels are closest to weights at scales that are given.

        Args:
            units: Weights.
            scales: What the levels are multiplied by; they broadcast to the weights.
        """
        targets = units / scales.where(scales > 0, 1)
        lowest, step = self.codes[0], self.codes.step
        if self.values is None:
            return targets.sub_(lowest).div_(step).round_().clamp_(0, len(self.codes) - 1).mul_(step).add_(lowest)
        levels, places = torch.tensor(self.values, dtype=targets.dtype, device=targets.device).sort()
        middles = (levels[1:] + levels[:-1]) / 2
        return places[torch.bucketize(targets, middles)].to(targets.dtype).mul_(step).add_(lowest)

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """What codes stand for before the scale, in a float type; without `values` the codes, as they are."""
        if self.values is None:
            return codes
        places = (codes.long() - self.codes[0]) // self.codes.step
        return torch.tensor(self.values, dtype=dtype, device=codes.device)[places]

    def dequantize(self, codes: Tensor, scales: Tensor, group_size: int | None = None) -> Tensor:
        """The weight that codes [out, in] and scales [1 or out, 1 or groups] stand for."""
        granularity = Granularity("row") if group_size is None else Granularity("group", group_size)
        values = self.decode(codes, torch.promote_types(scales.dtype, torch.float32))
        return (values * granularity.spread(scales, codes.shape[-1])).to(scales.dtype)


def find_format(name: str | NumberFormat) -> NumberFormat:
    """The format of a name in `registry.FORMATS`; a format itself is returned as it is."""
    if isinstance(name, NumberFormat):
        return name
    registered: NumberFormat = FORMATS.get(name)
    return registered


def find_layout(name: str) -> tuple[NumberFormat, Layout]:
    """The layout of a name, as files have it, and the format it belongs to.

    Raises:
        FormatError: Where no format is stored in a layout of that name.
    """
    known = []
    for format_ in map(find_format, FORMATS):
        for layout in format_.layouts:
            if layout.name == name:
                return format_, layout
            known.append(layout.name)
    raise FormatError(f"there is no layout `{name}`; known: {', '.join(known)}")


def _finite(scales: Tensor) -> Tensor:
    # Other devices, and a compiler, would have to wait for the value.
    readable = scales.device.type == "cpu" and scales.numel() > 0 and not torch.compiler.is_compiling()
    if readable and not bool(torch.isfinite(scales).all()):
        raise FormatError(
            "a weight that is to be quantized holds NaN or infinity; the model has diverged: lower `--lr`, or "
            "check the checkpoint"
        )
    return scales
