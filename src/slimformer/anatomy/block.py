"""One Transformer layer: its matrices, its norms, and narrowing it for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from slimformer.anatomy.family import Family, Fused
from slimformer.anatomy.matrix import Matrix, Part
from slimformer.errors import AnatomyError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Block:
    """Block `index` of a model, counted from 0, as its family describes it."""

    def __init__(self, base: nn.Module, family: Family, index: int) -> None:
        self.base = base
        self.family = family
        self.index = index
        self.path = f"{family.blocks}.{index}"

    def __repr__(self) -> str:
        return (
            f"Block({self.index}: {self.heads} heads of {self.head_width}, "
            f"{self.key_value_heads} key-value heads, ffn {self.ffn_width})"
        )

    @property
    def module(self) -> nn.Module:
        """The block itself."""
        return self.base.get_submodule(self.path)

    @property
    def attention(self) -> nn.Module:
        """The module whose forward receives the attention mask and the positions."""
        return self.part(self.family.attention)

    @property
    def attention_norm(self) -> nn.Module:
        """The norm of the attention sub-layer (`nn.Identity` where the family has none in this block)."""
        return self.part(self.family.attention_norm)

    @property
    def ffn_norm(self) -> nn.Module:
        """The norm of the feed-forward sub-layer."""
        return self.part(self.family.ffn_norm)

    @property
    def query(self) -> Matrix:
        """The query projection."""
        return self._matrix(self.family.query)

    @property
    def key(self) -> Matrix:
        """The key projection."""
        return self._own(self.family.key)

    @property
    def value(self) -> Matrix:
        """The value projection."""
        return self._own(self.family.value)

    @property
    def shares_keys(self) -> bool:
        """Whether the block takes keys and values of an earlier one and has no matrices for them."""
        name = self.family.shares_keys
        return name is not None and bool(getattr(self.attention, name))

    @property
    def output(self) -> Matrix:
        """The output projection of the attention."""
        return self._matrix(self.family.output)

    @property
    def up(self) -> Matrix:
        """The first feed-forward matrix."""
        return self._matrix(self.family.up)

    @property
    def gate(self) -> Matrix | None:
        """The gate of a gated feed-forward layer."""
        return None if self.family.gate is None else self._matrix(self.family.gate)

    @property
    def down(self) -> Matrix:
        """The last feed-forward matrix."""
        return self._matrix(self.family.down)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """The block's matrices by role: query, key, value, output, up, gate (if any), down."""
        shared = ("key", "value") if self.shares_keys else ()
        roles = [role for role in ("query", "key", "value", "output", "up", "gate", "down") if role not in shared]
        return {role: matrix for role in roles if (matrix := getattr(self, role)) is not None}

    @property
    def readers(self) -> list[list[Matrix]]:
        """The matrices in the order in which they are used, grouped by the input they read; fused ones as one."""
        roles = (("query", "key", "value"), ("output",), ("up", "gate"), ("down",))
        matrices = self.matrices
        groups = [[matrices[role] for role in group if role in matrices] for group in roles]
        whole = [{matrix.path: Matrix(matrix.root, matrix.path) for matrix in group} for group in groups]
        return [list(group.values()) for group in whole]

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return cast("int", getattr(self.attention, self.family.head_width))

    @property
    def heads(self) -> int:
        """Number of query heads."""
        # The input width of the output projection says it without knowing how queries are fused.
        return self.output.shape[1] // self.head_width

    @property
    def key_value_heads(self) -> int:
        """Number of key-value heads; each serves `heads / key_value_heads` query heads."""
        if self.shares_keys:
            return cast("int", cast("Any", self.base.config).num_key_value_heads)
        return self.heads if isinstance(self.family.key, Fused) else self.key.shape[0] // self.head_width

    @property
    def ffn_width(self) -> int:
        """Number of feed-forward neurons."""
        return self.down.shape[1]

    @property
    def parallel(self) -> bool:
        """Whether attention and feed-forward both read the block's input."""
        name = self.family.parallel
        return name is not None and bool(getattr(self.base.config, name))

    def part(self, path: str) -> nn.Module:
        """A module of this block by its path inside the block."""
        return self.module.get_submodule(path)

    def keep_neurons(self, neurons: Iterable[int]) -> None:
        """Keep only these feed-forward neurons for good, in the order given."""
        index = _checked(neurons, self.ffn_width, "feed-forward neurons", self.index)
        # Where up and gate are fused, narrowing one narrows both.
        for matrix in {matrix.module: matrix for matrix in (self.up, self.gate) if matrix is not None}.values():
            matrix.keep(rows=index)
        self.down.keep(columns=index)
        sync_config(self.base, self.family)

    def keep_heads(self, heads: Iterable[int]) -> None:
        """Keep only these heads for good, in the order given.

        With grouped queries the numbers count key-value heads, each with the query heads it serves.
        """
        refuse_pinned_heads(self.family)
        index = _checked(heads, self.key_value_heads, "key-value heads", self.index)
        group = self.heads // self.key_value_heads
        of_keys = _expand(index, self.head_width)
        of_queries = _expand(index, self.head_width * group)
        self.query.keep(rows=of_queries)
        if not isinstance(self.family.query, Fused):
            self.key.keep(rows=of_keys)
            self.value.keep(rows=of_keys)
        self.output.keep(columns=of_queries)
        for name in self.family.head_counts:
            setattr(self.attention, name, len(index) * group)
        for name in self.family.head_totals:
            setattr(self.attention, name, len(of_queries))
        sync_config(self.base, self.family)

    def _own(self, where: str | Fused) -> Matrix:
        if self.shares_keys:
            raise AnatomyError(
                f"block {self.index} of `{self.family.name}` takes keys and values of an earlier block and has no "
                "matrices for them; leave it out, or take another part of it"
            )
        return self._matrix(where)

    def _matrix(self, where: str | Fused) -> Matrix:
        if isinstance(where, str):
            return Matrix(self.base, f"{self.path}.{where}")
        groups = self.heads if where.per_head else 1
        return Matrix(self.base, f"{self.path}.{where.path}", Part(where.index, where.count, groups))


def sync_config(base: nn.Module, family: Family) -> None:
    """Make a model's config agree with its blocks after they were narrowed, so that it can be saved and loaded.

    A config with a list holds the neurons of each block; one with a number for all blocks follows once they agree.
    Fewer heads can be told only where the config holds the width of a head as well.
    """
    config: Any = base.config
    count = len(list(base.get_submodule(family.blocks).children()))
    blocks = [Block(base, family, index) for index in range(count)]
    neurons, heads = {block.ffn_width for block in blocks}, {(b.heads, b.key_value_heads) for b in blocks}
    if isinstance(getattr(config, family.ffn_size, None), list):
        setattr(config, family.ffn_size, [block.ffn_width for block in blocks])
    elif len(neurons) == 1:
        setattr(config, family.ffn_size, neurons.pop())
    if len(heads) == 1 and getattr(config, "head_dim", None) is not None:
        config.num_attention_heads, grouped = heads.pop()
        if hasattr(config, "num_key_value_heads"):
            config.num_key_value_heads = grouped


def refuse_pinned_heads(family: Family) -> None:
    """Raise where the family's own forward does not allow fewer heads in one block."""
    if family.heads_pinned_by is not None:
        raise AnatomyError(
            f"heads of `{family.name}` cannot be taken from single blocks: {family.heads_pinned_by}; "
            "narrow the feed-forward layers instead"
        )


def refuse_pinned_block(block: Block) -> None:
    """Raise where a model cannot do without a block."""
    reason = pinned_by(block)
    if reason is not None:
        raise AnatomyError(f"block {block.index} of `{block.family.name}` cannot be skipped: {reason}; skip others")


def pinned_by(block: Block) -> str | None:
    """Why a model cannot do without a block; None where it can."""
    if block.family.blocks_pinned_by is not None:
        return block.family.blocks_pinned_by
    if getattr(block.base.config, "scale_attn_by_inverse_layer_idx", False):
        return "the scale of attention depends on the number of the block"
    if block.index > 0:
        return None
    after = block.family.first_block_output
    if after is not None and any(name == after for name, _ in block.base.named_modules()):
        return f"`{after}` still changes what it returns"
    return block.family.first_block_pinned_by


def _checked(numbers: Iterable[int], limit: int, what: str, block: int) -> Tensor:
    # On the CPU also while a model is built on the meta device, where numbers have no values.
    index = torch.tensor(list(numbers), dtype=torch.long, device="cpu")
    if index.numel() == 0 or int(index.min()) < 0 or int(index.max()) >= limit or len(index.unique()) != len(index):
        raise AnatomyError(
            f"block {block} has {limit} {what}; got {index.numel()} numbers"
            f"{'' if index.numel() == 0 else f' from {int(index.min())} to {int(index.max())}'}; "
            f"give at least one, each once, from 0 to {limit - 1}"
        )
    return index


def _expand(index: Tensor, width: int) -> Tensor:
    return (index[:, None] * width + torch.arange(width, device=index.device)).flatten()
