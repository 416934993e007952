"""Putting operators of a few bits in the place of a model's matrices: whole blocks of a row, a scale for each.

In PyTorch the modules here compute with the float weight their codes stand for, so that the model they stand in is the
measure of the file; in an export each is one operator of the domain `com.microsoft`. The operator allows any width;
only a block must be a power of two, and the last block of a row is filled up with codes of zero, which change no
product. There are no zero points: the one that is left out is the middle, where the layouts have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy
from slimformer.anatomy.matrix import is_conv1d
from slimformer.errors import ArtifactError
from slimformer.formats import Granularity, find_format, pack, unpack
from slimformer.operators import PackedLinear
from slimformer.views import packed_weights

if TYPE_CHECKING:
    from slimformer.formats import OnnxForm, PackedWeight
    from slimformer.integrations.onnx.exporting import Numbers

#: Block sizes with kernels that compute in int8; the operator also takes blocks of 16, and computes those in float.
FAST = (128, 64, 32)
SMALLEST = 16


@dataclass(frozen=True)
class BlockWeight:
    """One weight in blocks.

    Args:
        codes: uint8, [rows, blocks, bytes of a block], or [rows, bytes] for a table that is only looked up.
        scales: float32, [rows, blocks].
        form: Bits of a code, and the layout they lie in.
        block_size: Codes of a block.
        columns: Codes of a row that count.
    """

    codes: Tensor
    scales: Tensor
    form: OnnxForm
    block_size: int
    columns: int

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return self.scales.shape[0]

    def weight(self) -> Tensor:
        """The float weight that this stands for, [rows, columns]."""
        packed = self.codes.flatten(1)
        codes = unpack(packed, self.form.layout, packed.shape[-1] * self.form.layout.digits)
        return codes[:, : self.columns] * self.scales.repeat_interleave(self.block_size, dim=1)[:, : self.columns]


def packed_blocks(weight: PackedWeight, name: str, table: bool = False) -> BlockWeight:
    """The blocks of a packed weight, with its codes and scales as they are.

    Args:
        weight: The packed weight.
        name: What to call it in an error.
        table: Whether it is only looked up, row by row, and never multiplied.

    Raises:
        ArtifactError: Where the operator cannot hold the format, or no block fits into the groups that share a scale.
    """
    form = weight.format.onnx
    if form is None:
        raise ArtifactError(
            f"`{name}` is {weight.format.name}, which no operator of ONNX computes with; export with numbers `float` "
            "or `int8`"
        )
    sharing = weight.group_size if weight.group_size is not None and weight.group_size < weight.columns else None
    size = _block_size(weight.columns, form.bits, sharing, table)
    if size is None:
        raise ArtifactError(
            f"`{name}` has one scale for {sharing} weights, and a block of ONNX is a power of two from {SMALLEST} on; "
            "quantize with a group size that is a multiple of 32, or export with numbers `float` or `int8`"
        )
    firsts = torch.arange(0, weight.columns, size) // (sharing or weight.columns)
    scales = weight.scales.expand(len(weight.codes), -1)[:, firsts]
    return _in_blocks(weight.unpack(), scales, form, size, table)


def rounded_blocks(weight: Tensor, table: bool = False) -> BlockWeight:
    """A float weight, [rows, columns], rounded to 8 bits with a scale for each block."""
    int8 = find_format("int8")
    assert int8.onnx is not None
    size = _block_size(weight.shape[1], int8.onnx.bits, None, table=False)
    assert size is not None
    codes, scales = int8.quantize(weight.float(), Granularity("group", size))
    return _in_blocks(codes, scales, int8.onnx, size, table)


def _block_size(columns: int, bits: int, sharing: int | None, table: bool) -> int | None:
    """The size of block that makes the smallest file; the larger of two alike."""
    if sharing is None and table:
        # A table may have one block for a whole row, and rows are not filled up.
        return max(SMALLEST, 1 << (columns - 1).bit_length())
    fitting = [size for size in FAST if sharing is None or sharing % size == 0]
    if not fitting and sharing is not None and sharing % SMALLEST == 0:
        return SMALLEST
    return min(fitting, key=lambda size: -(-columns // size) * (size * bits // 8 + 4), default=None)


def _in_blocks(codes: Tensor, scales: Tensor, form: OnnxForm, size: int, table: bool) -> BlockWeight:
    rows, columns = codes.shape
    filled = codes if table else torch.nn.functional.pad(codes, (0, -columns % size))
    packed = pack(filled, form.layout)
    if not table:
        packed = packed.view(rows, -(-columns // size), size * form.bits // 8)
    return BlockWeight(packed, scales.float().contiguous(), form, size, columns)


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
    return type(module) in (nn.Linear, PackedLinear, nn.Embedding) or is_conv1d(module) or _scale(module) is not None


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
    #: T5 asks its matrices for their type, and takes this for one that does not matter.
    weight: ClassVar[None] = None

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
