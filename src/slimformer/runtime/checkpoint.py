"""Settings of a checkpoint, its tensors in NumPy, packed or not, and what of it the engine computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ArtifactError, describe
from slimformer.files import JsonError, read_json
from slimformer.formats import layout as layouts
from slimformer.runtime.mapping import BFLOAT16, as_floats, map_tensors
from slimformer.runtime.native import kernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slimformer.runtime.onnx import Array

CONFIG = "config.json"
#: A longer file holds no settings.
SETTINGS_BYTES = 1 << 24
#: Layouts that the kernels read, by the names they have in files.
LAYOUTS = {
    layout.name: layout
    for layout in (
        layouts.TERNARY,
        layouts.TERNARY_SMALL,
        layouts.BINARY,
        layouts.INT2,
        layouts.INT3,
        layouts.INT4,
        layouts.INT8,
    )
}


class EngineError(ArtifactError):
    """A model that the engine does not run."""


@dataclass(frozen=True)
class Codes:
    """A packed weight, [rows, columns].

    Args:
        codes: uint8, [rows, bytes].
        scales: float32, [rows, groups].
        columns: Codes of a row.
        group: Columns that share a scale.
        layout: How the codes lie in the bytes.
    """

    codes: Array
    scales: Array
    columns: int
    group: int
    layout: layouts.Layout

    @property
    def rule(self) -> tuple[int, ...]:
        """How the kernels are told of the layout."""
        return rule_of(self.layout)


def rule_of(layout: layouts.Layout) -> tuple[int, ...]:
    """How the kernels are told of a layout."""
    ends = layout.allowed[0], layout.allowed[-1]
    return layout.base, layout.digits, layout.lowest, layout.stride, layout.bytes, *ends


def read_object(folder: Path, name: str, *, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file of a folder.

    Args:
        folder: Where the file lies.
        name: What it is called.
        optional: Whether it may be missing, and is an empty object then.
    """
    path = folder / name
    try:
        content = read_json(path, SETTINGS_BYTES)
    except (OSError, JsonError) as error:
        # A link to nothing is a file that was lost, as in a cache that was cleared in part.
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            if optional:
                return {}
            raise EngineError(f"`{folder}` has no {name}; give the folder of a model") from error
        raise EngineError(f"`{path}` cannot be read ({error}); copy it again") from error
    if not isinstance(content, dict):
        raise EngineError(f"`{path}` holds `{describe(content)}`, which is no object; copy it again")
    return content


def read_tensors(folder: Path) -> dict[str, Array]:
    """All tensors in the safetensors files of a folder."""
    tensors: dict[str, Array] = {}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"no safetensors in `{folder}`; give the folder of a model")
    for file in files:
        try:
            tensors |= map_tensors(file)
        except (OSError, ValueError, RecursionError) as error:
            raise EngineError(f"`{file}` cannot be read: {error}; copy it again") from error
    return tensors


class Checkpoint:
    """The tensors of a model.

    Args:
        name: What the user calls it, for messages.
        tensors: By their names.
        all_biased: Whether every matrix and norm has a bias; else what is not there is none.
        group_size: Columns of a packed weight that share a scale, where groups do.
    """

    def __init__(
        self,
        name: str | Path,
        tensors: Mapping[str, Array],
        all_biased: bool = True,
        group_size: int | None = None,
    ) -> None:
        self.name = name
        self.tensors = tensors
        self.all_biased = all_biased
        self.group_size = group_size

    def prefix(self, name: str) -> str:
        """What stands before the names of the encoder: nothing, or that of the model with a head."""
        for tensor in self.tensors:
            before, weight, rest = tensor.partition(f"{name}.weight")
            if weight and (not rest or rest.startswith(".")):
                return before
        raise EngineError(f"`{self.name}` has no `{name}`; the engine does not run such a model")

    def floats(self, name: str, axes: int = 1) -> Array:
        """A tensor in float32."""
        return as_floats(self.stored(name, axes))

    def stored(self, name: str, axes: int) -> Array:
        """A tensor of floats of any kind, as it is stored."""
        stored = self.tensors.get(name)
        if stored is None:
            raise EngineError(f"`{self.name}` has no tensor `{name}`; copy it again")
        floats = stored.dtype == BFLOAT16 or np.issubdtype(stored.dtype, np.floating)
        if stored.ndim != axes or not floats or not np.isfinite(as_floats(stored)).all():
            raise EngineError(
                f"`{name}` of `{self.name}` is {_kind(stored)} of shape {list(stored.shape)}; finite floats with "
                f"{axes} axes were expected, so copy it again"
            )
        return stored

    def weight(self, name: str, columns: int) -> Codes | Array:
        """The weight of a module, packed or in bfloat16 or in float32."""
        for layout in LAYOUTS.values():
            codes = self.tensors.get(f"{name}.weight.{layout.name}")
            if codes is None:
                continue
            if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != layout.bytes_for(columns):
                raise EngineError(
                    f"codes of `{name}` of `{self.name}` are {codes.dtype} of shape {list(codes.shape)}, and rows "
                    f"have {columns} columns; copy it again"
                )
            scales = self.floats(f"{name}.weight.{layout.name}_scales", axes=2)
            group = self.group_size if scales.shape[1] > 1 and self.group_size is not None else columns
            if scales.shape not in ((1, 1), (len(codes), -(-columns // group))):
                raise EngineError(
                    f"`{name}` of `{self.name}` has scales of shape {list(scales.shape)}, and {len(codes)} rows with "
                    f"groups of {group}; copy it again"
                )
            spread = np.ascontiguousarray(np.broadcast_to(scales, (len(codes), scales.shape[1])))
            return Codes(np.ascontiguousarray(codes), spread, columns, group, layout)
        if f"{name}.weight" not in self.tensors:
            raise EngineError(
                f"`{self.name}` has no `{name}` that the engine reads; the engine reads {', '.join(LAYOUTS)}"
            )
        stored = self.stored(f"{name}.weight", axes=2)
        floats = stored if stored.dtype == BFLOAT16 else as_floats(stored)
        if floats.shape[1] != columns:
            raise EngineError(
                f"`{name}` of `{self.name}` has {floats.shape[1]} columns and reads {columns} inputs; copy it again"
            )
        return floats

    def rows(self, name: str, columns: int) -> int:
        """Rows of the weight of a module."""
        return _rows([self.weight(name, columns)])

    def lacks(self, name: str) -> bool:
        """Whether there is no tensor of that name."""
        return name not in self.tensors

    def has_weight(self, name: str) -> bool:
        """Whether there is a weight of a module, packed or not."""
        return any(f"{name}.weight{ending}" in self.tensors for ending in ("", *(f".{layout}" for layout in LAYOUTS)))

    def bias(self, name: str) -> Array | None:
        """The bias of a module that has one."""
        return None if self.lacks(f"{name}.bias") and not self.all_biased else self.floats(f"{name}.bias")

    def table(self, name: str, columns: int) -> Any:
        """The weight of a module, as the kernels take rows to be looked up."""
        weight = self.weight(name, columns)
        if not isinstance(weight, Codes):
            return _bits(weight) if weight.dtype == BFLOAT16 else weight
        return weight.codes, weight.scales, columns, weight.group, weight.rule

    def matrix(self, *names: str, inputs: int, alike: bool = False) -> Any:
        """One matrix for the kernels, of one or more that read the same input; `alike` are as high as each other."""
        weights = [self.weight(name, inputs) for name in names]
        heights = [_rows([weight]) for weight in weights]
        if alike and len(set(heights)) > 1:
            raise EngineError(f"{', '.join(names)} of `{self.name}` have {heights} rows; copy it again")
        biases = [self.bias(name) for name in names]
        if not any(isinstance(weight, Codes) for weight in weights):
            return self.float_matrix(list(zip(weights, biases, strict=True)))  # type: ignore[arg-type]
        packed = [weight for weight in weights if isinstance(weight, Codes)]
        if len({(weight.layout.name, weight.group) for weight in packed}) > 1 or len(packed) < len(weights):
            raise EngineError(f"{', '.join(names)} of `{self.name}` are not packed alike; the engine reads them as one")
        matrix = kernels().Matrix(_rows(weights), inputs, packed[0].rule, packed[0].group)
        row = 0
        for weight, bias in zip(packed, biases, strict=True):
            matrix.set_codes(row, weight.codes, weight.scales, weight.group, weight.rule, bias)
            row += len(weight.codes)
        return matrix

    def float_matrix(self, parts: list[tuple[Array, Array | None]]) -> Any:
        """One matrix for the kernels, of weights with their biases: in bfloat16 where all are, else in float32."""
        halves = all(weight.dtype == BFLOAT16 for weight, _ in parts)
        matrix = kernels().Matrix(_rows([weight for weight, _ in parts]), parts[0][0].shape[1], bfloat16=halves)
        row = 0
        for weight, bias in parts:
            if halves:
                matrix.set_bfloat16(row, _bits(weight), bias)
            else:
                matrix.set_floats(row, as_floats(weight), bias)
            row += len(weight)
        return matrix


def _bits(weight: Array) -> Array:
    return np.require(weight["bfloat16"], requirements=["C", "A"])


def _kind(stored: Array) -> str:
    return "bfloat16" if stored.dtype == BFLOAT16 else str(stored.dtype)


def _rows(weights: Sequence[Codes | Array]) -> int:
    return sum(len(each.codes if isinstance(each, Codes) else each) for each in weights)
