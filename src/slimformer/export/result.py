"""What can be asked of an export, and what it tells of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

#: What the matrices of an exported file are stored in; see docs/guides/export.md.
Numbers = Literal["float", "int8", "ternary", "packed"]


@dataclass(frozen=True)
class Difference:
    """How far the answers of a file are from those of the model it was made from, over all examples compared.

    Args:
        largest: Largest absolute difference of a value.
        mean: Mean absolute difference.
        relative: Largest difference of an output as a share of the largest value of that output.
        agreement: Share of decisions (classes, tokens, ends of spans) that are the same; None where nothing decides.
        examples: How many examples were compared.
    """

    largest: float
    mean: float
    relative: float
    agreement: float | None
    examples: int


@dataclass(frozen=True)
class ExportResult:
    """A file that was written.

    Args:
        path: The file.
        architecture: Class of the model it was made from.
        numbers: What its matrices are stored in.
        bytes: Its size, with that of the data beside it where it is too large for one file.
        opset: Version of the ONNX operators it uses.
        inputs: Names of what it takes.
        outputs: Names of what it gives.
        matrices: How many weights are stored in 2, 4 or 8 bits.
        difference: How far its answers are from those of the model.
    """

    path: Path
    architecture: str
    numbers: Numbers
    bytes: int
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    matrices: int
    difference: Difference

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            **asdict(self),
            "path": str(self.path),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
        }
