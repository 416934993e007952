"""Tensors of a packed checkpoint in NumPy, and what of it the engine computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ArtifactError
from slimformer.formats.layout import TERNARY, TERNARY_SMALL, Layout
from slimformer.runtime.native import kernels

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.runtime.onnx import Array

#: Layouts that the kernels read, by the names they have in files.
LAYOUTS = {layout.name: layout for layout in (TERNARY, TERNARY_SMALL)}


class EngineError(ArtifactError):
    """A model that the engine does not run."""


@dataclass(frozen=True)
class Codes:
    """A packed weight, [rows, columns].

    Args:
        codes: uint8, [rows, bytes].
        scales: float32, one for each row.
        layout: How the codes lie in the bytes.
    """

    codes: Array
    scales: Array
    layout: Layout

    def table(self) -> tuple[Array, Array, int, int, int]:
        """What the kernels take as rows to be looked up."""
        return self.codes, self.scales, self.layout.base, self.layout.digits, self.layout.lowest


class Checkpoint:
    """The tensors of a folder.

    Args:
        folder: With weights in safetensors.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder = folder
        self.tensors: dict[str, Array] = {}
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise EngineError(f"no safetensors in `{folder}`; give the folder of a quantized model")
        for file in files:
            try:
                with safe_open(file, framework="numpy") as opened:
                    self.tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            except (OSError, SafetensorError, TypeError) as error:  # a type of number that NumPy does not have
                raise EngineError(f"`{file}` cannot be read: {error}; copy it again") from error

    def prefix(self, name: str) -> str:
        """What stands before the names of the encoder: nothing, or that of the model with a head."""
        for tensor in self.tensors:
            before, weight, rest = tensor.partition(f"{name}.weight")
            if weight and (not rest or rest.startswith(".")):
                return before
        raise EngineError(f"`{self.folder}` has no `{name}`; the engine does not run such a model")

    def floats(self, name: str, axes: int = 1) -> Array:
        """A tensor in float32."""
        stored = self.tensors.get(name)
        if stored is None:
            raise EngineError(f"`{self.folder}` has no tensor `{name}`; copy it again")
        floats = np.issubdtype(stored.dtype, np.floating)
        with np.errstate(over="ignore"):
            cast = np.ascontiguousarray(stored, np.float32) if floats else stored
        if stored.ndim != axes or not floats or not np.isfinite(cast).all():
            raise EngineError(
                f"`{name}` of `{self.folder}` is {stored.dtype} of shape {list(stored.shape)}; finite floats with "
                f"{axes} axes were expected, so copy it again"
            )
        return cast

    def weight(self, name: str, columns: int) -> Codes | Array:
        """The weight of a module, packed or in float32."""
        for layout in LAYOUTS.values():
            codes = self.tensors.get(f"{name}.weight.{layout.name}")
            if codes is None:
                continue
            if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != layout.bytes_for(columns):
                raise EngineError(
                    f"codes of `{name}` of `{self.folder}` are {codes.dtype} of shape {list(codes.shape)}, and rows "
                    f"have {columns} columns; copy it again"
                )
            scales = self.floats(f"{name}.weight.{layout.name}_scales", axes=2)
            if scales.shape not in ((1, 1), (len(codes), 1)):
                raise EngineError(
                    f"`{name}` of `{self.folder}` has scales for groups; the engine takes one for each row"
                )
            spread = np.ascontiguousarray(np.broadcast_to(scales[:, 0], len(codes)))
            return Codes(np.ascontiguousarray(codes), spread, layout)
        if f"{name}.weight" not in self.tensors:
            raise EngineError(
                f"`{self.folder}` has no `{name}` that the engine reads; the engine reads {', '.join(LAYOUTS)}"
            )
        return self.floats(f"{name}.weight", axes=2)

    def matrix(self, *names: str, inputs: int) -> Any:
        """One ternary matrix for the kernels, of one or more that read the same input."""
        parts: list[tuple[Codes, Array | None]] = []
        for name in names:
            weight = self.weight(name, inputs)
            if not isinstance(weight, Codes):
                raise EngineError(f"`{name}` of `{self.folder}` is in floats; the engine reads ternary matrices")
            parts.append((weight, self.floats(f"{name}.bias") if f"{name}.bias" in self.tensors else None))
        matrix = kernels().Matrix(sum(len(weight.codes) for weight, _ in parts), inputs)
        row = 0
        for weight, bias in parts:
            layout = weight.layout
            matrix.set_rows(row, weight.codes, layout.base, layout.digits, layout.lowest, weight.scales, bias)
            row += len(weight.codes)
        return matrix
