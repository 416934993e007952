"""The rows of a fused matrix that belong to one of the matrices fused into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from slimformer.errors import AnatomyError


@dataclass(frozen=True)
class Part:
    """Part `index` of `count` equal matrices fused along the output axis.

    The output axis reads as `[groups, count, width]`. With one group the parts lie one after the other
    (GPT-2's and ModernBERT's `[q | k | v]`); with one group per head they are interleaved (GPT-NeoX).
    """

    index: int
    count: int
    groups: int = 1

    def take(self, fused: Tensor, dim: int = 0) -> Tensor:
        """Return the part's slice of `fused` along `dim`; a view of the same memory when `groups` is 1."""
        dim %= fused.dim()
        grouped: Tensor = fused.unflatten(dim, (self.groups, self.count, -1))
        return grouped.select(dim + 1, self.index).flatten(dim, dim + 1)

    def put(self, fused: Tensor, value: Tensor, dim: int = 0) -> Tensor:
        """Return a copy of `fused` in which the part's slice is `value`; differentiable in both."""
        dim %= fused.dim()
        pieces = list(fused.unflatten(dim, (self.groups, self.count, -1)).unbind(dim + 1))
        pieces[self.index] = value.unflatten(dim, (self.groups, -1))
        return torch.stack(pieces, dim + 1).flatten(dim, dim + 2)

    def rows(self, index: Tensor, fused_rows: int) -> Tensor:
        """Translate row numbers of the part into row numbers of the fused matrix."""
        width = fused_rows // (self.groups * self.count)
        group, offset = index // width, index % width
        return (group * self.count + self.index) * width + offset

    def all_rows(self, index: Tensor, fused_rows: int) -> Tensor:
        """Row numbers of the fused matrix that keep row `index` of every part, still fused the same way."""
        parts = [Part(number, self.count, self.groups).rows(index, fused_rows) for number in range(self.count)]
        if self.groups == 1:
            return torch.cat(parts)
        width = fused_rows // (self.groups * self.count)
        return torch.stack([rows.view(-1, width) for rows in parts], dim=1).flatten()


def is_conv1d(module: nn.Module) -> bool:
    """Tell whether `module` is Transformers' `Conv1D`, a linear layer whose weight is stored as [in, out]."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


class Matrix:
    """A weight read as [out, in], with the part of it that counts when several matrices are fused.

    `nn.Linear` and `nn.Embedding` (one row per token) store it that way; `Conv1D` is transposed on the
    fly. The module is looked up on every use, so a `Matrix` stays valid after `replace`.

    Args:
        root: The module in which `path` is looked up.
        path: Dotted path of the holding module inside `root`; empty for `root` itself.
        part: Which rows belong to this matrix when the module holds several fused ones.
    """

    def __init__(self, root: nn.Module, path: str = "", part: Part | None = None) -> None:
        self.root = root
        self.path = path
        self.part = part
        if not (isinstance(self.module, nn.Linear | nn.Embedding) or is_conv1d(self.module)):
            raise AnatomyError(
                f"`{path or 'module'}` is a {type(self.module).__name__}; "
                "a matrix lives in nn.Linear, Conv1D or nn.Embedding"
            )

    def __repr__(self) -> str:
        rows, columns = self.shape
        part = "" if self.part is None else f", part {self.part.index + 1} of {self.part.count}"
        return f"Matrix({self.path or type(self.module).__name__}: {rows} x {columns}{part})"

    @property
    def module(self) -> nn.Module:
        """The module that holds the weight now."""
        return self.root.get_submodule(self.path)

    @property
    def transposed(self) -> bool:
        """Whether the module stores the weight as [in, out]."""
        return is_conv1d(self.module)

    @property
    def weight(self) -> Tensor:
        """The weight as the forward uses it, views included: [out, in]."""
        weight = cast("Tensor", self.module.weight)
        weight = weight.mT if self.transposed else weight
        return weight if self.part is None else self.part.take(weight)

    @property
    def bias(self) -> Tensor | None:
        """The bias as the forward uses it, [out], or None."""
        bias = cast("Tensor | None", getattr(self.module, "bias", None))
        return bias if bias is None or self.part is None else self.part.take(bias)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: output and input width (or tokens and width of an embedding)."""
        rows, columns = self.weight.shape
        return rows, columns

    @torch.no_grad()
    def write(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Copy values into the matrix; shapes must agree."""
        if parametrize.is_parametrized(self.module):
            raise AnatomyError(f"`{self.path}` carries views; bake or strip them before writing to it")
        if tuple(weight.shape) != self.shape:
            raise AnatomyError(
                f"cannot write {list(weight.shape)} into `{self.path}` of {list(self.shape)}; shapes must agree"
            )
        _write_rows(self.module, "weight", weight, self.part, self.transposed)
        if bias is not None:
            if self.bias is None or self.bias.shape != bias.shape:
                raise AnatomyError(f"cannot write a bias of {list(bias.shape)} into `{self.path}`; shapes must agree")
            _write_rows(self.module, "bias", bias, self.part, transposed=False)

    def replace(self, module: nn.Module) -> None:
        """Put another module in the place of the one that holds the matrix (fused parts go together)."""
        if not self.path:
            raise AnatomyError("the matrix is the root module itself; replace it where it is used")
        parent, _, name = self.path.rpartition(".")
        setattr(self.root.get_submodule(parent), name, module)

    @torch.no_grad()
    def keep(self, rows: Tensor | None = None, columns: Tensor | None = None) -> None:
        """Keep only the given rows and columns for good, in that order.

        In a fused matrix every part keeps the same rows, as the forward cuts the output into equal parts.
        """
        module = self.module
        if parametrize.is_parametrized(module):
            raise AnatomyError(f"`{self.path}` carries views; bake or strip them before narrowing it")
        if rows is not None:
            if self.part is not None:
                rows = self.part.all_rows(rows, self.shape[0] * self.part.count)
            _select(module, "weight", rows, dim=1 if self.transposed else 0)
            if getattr(module, "bias", None) is not None:
                _select(module, "bias", rows, dim=0)
        if columns is not None:
            _select(module, "weight", columns, dim=0 if self.transposed else 1)
        sync_sizes(module)

    def parametrize(self, parametrization: nn.Module, tensor: str = "weight") -> None:
        """Re-parametrize the weight (or `tensor="bias"`) by a module that maps [out, in] to [out', in']."""
        oriented = orient(parametrization, self.part, transposed=self.transposed and tensor == "weight")
        # `unsafe` only waives the check that the shape stays: a slice is meant to change it.
        parametrize.register_parametrization(self.module, tensor, oriented, unsafe=True)


class Oriented(nn.Module):
    """Adapts a parametrization of an [out, in] matrix to how the weight is really stored."""

    def __init__(self, inner: nn.Module, part: Part | None, transposed: bool) -> None:
        super().__init__()
        self.inner = inner
        self.part = part
        self.transposed = transposed

    def forward(self, stored: Tensor) -> Tensor:
        """Orient, cut out the part, apply the inner parametrization, and undo the first two."""
        matrix = stored.mT if self.transposed else stored
        shown = self.inner(matrix if self.part is None else self.part.take(matrix))
        matrix = shown if self.part is None else self.part.put(matrix, shown)
        return matrix.mT if self.transposed else matrix


def orient(parametrization: nn.Module, part: Part | None, transposed: bool) -> nn.Module:
    """Wrap a parametrization in `Oriented` where the storage differs from [out, in]; else leave it."""
    return Oriented(parametrization, part, transposed) if part is not None or transposed else parametrization


def sync_sizes(module: nn.Module) -> None:
    """Make a module's size attributes agree with its weight after that was narrowed."""
    rows, columns = cast("Tensor", module.weight).shape
    if is_conv1d(module):
        module.nx, module.nf = rows, columns  # type: ignore[assignment]
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = rows, columns
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = rows, columns


def _select(module: nn.Module, name: str, index: Tensor, dim: int) -> None:
    old = getattr(module, name)
    new = old.detach().index_select(dim, index.to(old.device)).contiguous()
    setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))


def _write_rows(module: nn.Module, name: str, value: Tensor, part: Part | None, transposed: bool) -> None:
    stored = getattr(module, name)
    matrix = stored.mT if transposed else stored
    matrix.copy_(value if part is None else part.put(matrix, value.to(matrix)))
