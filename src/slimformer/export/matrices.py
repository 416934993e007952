"""Putting operators of a few bits in the place of a model's matrices.

In PyTorch the modules here compute with the float weight their codes stand for, so that the model they stand in is the
measure of the file; in an export each is one operator of the domain `com.microsoft`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy
from slimformer.anatomy.matrix import is_conv1d
from slimformer.artifact.storage.packed_weights import packed_weights
from slimformer.errors import ArtifactError
from slimformer.export.blocks import BlockWeight, packed_blocks, rounded_blocks

if TYPE_CHECKING:
    from slimformer.export.result import Numbers

DOMAIN = "com.microsoft"
#: int8 activations inside the kernel, rounded block by block.
INT8_ACTIVATIONS = 4


@dataclass
class _Use:
    """A stored weight and where it is used; tied ones have several places."""

    weight: Tensor
    places: list[tuple[str, nn.Module]] = field(default_factory=list)

    @property
    def table(self) -> bool:
        """Whether it is only looked up."""
        return all(isinstance(module, nn.Embedding) for _, module in self.places)

    @property
    def as_rows(self) -> Tensor:
        """The weight as [out, in]."""
        return self.weight.mT if any(is_conv1d(module) for _, module in self.places) else self.weight


def replace_matrices(model: nn.Module, numbers: Numbers) -> int:
    """Let a model compute with blocks of a few bits; return how many weights that are.

    Args:
        model: A model without views and without rounding; its modules are replaced, its tensors stay as they are.
        numbers: "int8" for every matrix and the token table, rounded here; "packed" or "ternary" for the weights that
            are packed, as they are; "float" for none.
    """
    if numbers == "float":
        return 0
    uses = _uses(model)
    blocks = _rounded(model, uses) if numbers == "int8" else _packed(model, uses)
    for key, weight in blocks.items():
        for path, module in uses[key].places:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, _module(weight, module))
    return len(blocks)


def _uses(model: nn.Module) -> dict[int, _Use]:
    found: dict[int, _Use] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if _is_plain(module):
            weight = cast("Tensor", module.weight)
            found.setdefault(id(weight), _Use(weight)).places.append((path, module))
    return found


def _is_plain(module: nn.Module) -> bool:
    """Whether a module does nothing with its weight but multiply or look up; others are left in float."""
    return type(module) in (nn.Linear, nn.Embedding) or is_conv1d(module) or _scale(module) is not None


def _scale(module: nn.Module) -> float | None:
    """What an embedding multiplies its rows by, as Gemma's does."""
    if isinstance(module, nn.Embedding) and type(module) is not nn.Embedding and hasattr(module, "embed_scale"):
        return float(module.embed_scale)  # type: ignore[arg-type]
    return None


def _packed(model: nn.Module, uses: dict[int, _Use]) -> dict[int, BlockWeight]:
    stored = model.state_dict(keep_vars=True)
    found = {}
    for name, weight in packed_weights(model).items():
        if not torch.equal(stored[name].detach(), weight.weight()):
            raise ArtifactError(
                f"`{name}` was changed after it was packed, so its codes are not its weight any more; quantize the "
                "model again, or export with numbers `float` or `int8`"
            )
        use = uses.get(id(stored[name]))
        if use is not None:
            found[id(stored[name])] = packed_blocks(weight, name, use.table)
    return found


def _rounded(model: nn.Module, uses: dict[int, _Use]) -> dict[int, BlockWeight]:
    word = Anatomy.of(model).word_embedding
    token_table = None if word is None else word.module
    # Tables of positions are small, and some families read them in other ways than by looking rows up.
    return {
        key: rounded_blocks(use.as_rows.detach(), use.table)
        for key, use in uses.items()
        if not use.table or any(module is token_table for _, module in use.places)
    }


def _module(weight: BlockWeight, former: nn.Module) -> nn.Module:
    if isinstance(former, nn.Embedding):
        return BlockEmbedding(weight, _scale(former))
    return BlockLinear(weight, cast("Tensor | None", former.bias))


class _Blocks(nn.Module):
    """Holds a weight in blocks."""

    codes: Tensor
    scales: Tensor

    def __init__(self, weight: BlockWeight) -> None:
        super().__init__()
        self.register_buffer("codes", weight.codes)
        self.register_buffer("scales", weight.scales)
        self.form, self.block_size, self.columns = weight.form, weight.block_size, weight.columns

    def dequantized(self) -> Tensor:
        """The float weight the codes stand for."""
        return BlockWeight(self.codes, self.scales, self.form, self.block_size, self.columns).weight()


class BlockLinear(_Blocks):
    """A linear layer whose weight is in blocks: `MatMulNBits` in an export."""

    bias: Tensor | None

    def __init__(self, weight: BlockWeight, bias: Tensor | None) -> None:
        super().__init__(weight)
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        if not torch.onnx.is_in_onnx_export():
            return nn.functional.linear(x, self.dequantized(), self.bias)
        rows = self.scales.shape[0]
        attributes: dict[str, Any] = {
            "K": self.columns,
            "N": rows,
            "bits": self.form.bits,
            "block_size": self.block_size,
            "accuracy_level": INT8_ACTIVATIONS,
        }
        product = torch.onnx.ops.symbolic(
            f"{DOMAIN}::MatMulNBits",
            (x, self.codes, self.scales),
            attributes,
            dtype=x.dtype,
            shape=(*x.shape[:-1], rows),
            version=1,
        )
        return product if self.bias is None else product + self.bias


class BlockEmbedding(_Blocks):
    """A table whose rows are in blocks: `GatherBlockQuantized` in an export."""

    def __init__(self, weight: BlockWeight, scale: float | None = None) -> None:
        super().__init__(weight)
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        """Look rows up."""
        rows = self._rows(ids)
        return rows if self.scale is None else rows * self.scale

    def _rows(self, ids: Tensor) -> Tensor:
        if not torch.onnx.is_in_onnx_export():
            return nn.functional.embedding(ids, self.dequantized())
        codes = self.codes if self.codes.dim() == 2 else self.codes.flatten(1)
        width = codes.shape[1] * 8 // self.form.bits
        rows = torch.onnx.ops.symbolic(
            f"{DOMAIN}::GatherBlockQuantized",
            (codes, ids, self.scales),
            {"bits": self.form.bits, "block_size": self.block_size, "gather_axis": 0, "quantize_axis": 1},
            dtype=self.scales.dtype,
            shape=(*ids.shape, width),
            version=1,
        )
        return rows if width == self.columns else rows[..., : self.columns]
