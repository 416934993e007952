"""What a model family is, as data, and the registry of families known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from slimformer.errors import UnknownFamilyError

#: How a block computes scores from projected queries and keys; see `slimformer.anatomy.scores`.
ScoreRule = Literal["dot", "rotary", "position-bias", "disentangled"]


@dataclass(frozen=True)
class Fused:
    """One of several equal matrices held by a single module.

    Args:
        path: The module inside the block.
        index: Which of the matrices, counted from 0.
        count: How many are fused.
        per_head: Whether they alternate head by head (GPT-NeoX) rather than lie one after the other.
    """

    path: str
    index: int
    count: int
    per_head: bool = False


@dataclass(frozen=True)
class Family:
    """Where the parts of a model family live: dotted paths, in the base model or in one block.

    Paths marked * below are inside a block; the others are inside the base model.

    Args:
        name: Transformers' `model_type`.
        blocks: The list of blocks.
        attention: * The module whose forward receives the attention mask and the positions.
        query: * Query projection; `Fused` when one module holds several.
        key: * Key projection.
        value: * Value projection.
        output: * Output projection of the attention.
        up: * First feed-forward matrix.
        down: * Last feed-forward matrix.
        attention_norm: * Norm of the attention sub-layer.
        ffn_norm: * Norm of the feed-forward sub-layer.
        head_width: Attribute of the attention module that holds the width of one head.
        gate: * Gate of a gated feed-forward layer.
        pre_norm: Whether norms stand before the sub-layers rather than after the residual sums.
        parallel: Config attribute that, when true, feeds both sub-layers from the block's input.
        embeddings: The modules that make the first hidden states.
        word_embedding: The token table; None for images.
        patch_embedding: The patch projection; None for text.
        final_norm: The norm after the last block, if any.
        pooler: The pooler's matrix, looked up in the base model and then in the model around it.
        causal: Whether a token sees only what stands before it.
        scores: How scores come about.
        query_norm: * Norm on each head's queries, [batch, length, heads, width], if any.
        key_norm: * Norm on each head's keys, if any.
        head_counts: Attributes of the attention module that hold its number of heads.
        head_totals: Attributes of the attention module that hold heads times head width.
        heads_pinned_by: Why heads cannot be removed from a single block, if so.
        shares_keys: Attribute of the attention module that is true where the block takes keys and values of an earlier
            one and has no matrices for them, if a family has such blocks.
        blocks_pinned_by: Why no block at all can be left out, if so.
        taps_pinned_by: Why what a block computes cannot be recorded, if so.
        block_returns: What a block returns after the hidden states, each named by the argument it was handed in as
            (None for nothing); None where it returns the hidden states alone.
        first_block_pinned_by: Why the first block cannot be left out, if so.
        first_block_output: A module that still changes the first block's output, if the model has it.
        ffn_size: Config attribute that holds the number of feed-forward neurons.
        positions_after_padding: Whether positions are numbered from the one after the padding token's, so that there
            are fewer than the table holds.
        factorised: Family of the same blocks whose config has an `embedding_size`, so that embeddings may be narrower
            than the hidden states, if any; its own name where that is the family itself.
        gated: The entry for models whose config says `is_gated_act`, where a family has both kinds of blocks.
        beyond: A module of base models that this entry does not describe, such as a decoder; they are refused.
        bare: The class of Transformers that opens a checkpoint without a head.
    """

    name: str
    blocks: str
    attention: str
    query: str | Fused
    key: str | Fused
    value: str | Fused
    output: str
    up: str | Fused
    down: str
    attention_norm: str
    ffn_norm: str
    head_width: str
    gate: str | Fused | None = None
    pre_norm: bool = False
    parallel: str | None = None
    embeddings: tuple[str, ...] = ("embeddings",)
    word_embedding: str | None = None
    patch_embedding: str | None = None
    final_norm: str | None = None
    pooler: str | None = None
    causal: bool = False
    scores: ScoreRule = "dot"
    query_norm: str | None = None
    key_norm: str | None = None
    head_counts: tuple[str, ...] = ()
    head_totals: tuple[str, ...] = ()
    heads_pinned_by: str | None = None
    shares_keys: str | None = None
    blocks_pinned_by: str | None = None
    taps_pinned_by: str | None = None
    block_returns: tuple[str | None, ...] | None = None
    first_block_pinned_by: str | None = None
    first_block_output: str | None = None
    ffn_size: str = "intermediate_size"
    positions_after_padding: bool = False
    factorised: str | None = None
    gated: Family | None = None
    beyond: str | None = None
    bare: str = "AutoModel"

    def of_config(self, config: Any) -> Family:
        """The entry for a model of this family with that config."""
        return self.gated if self.gated is not None and getattr(config, "is_gated_act", False) else self


_families: dict[str, Family] = {}


def register(*families: Family) -> None:
    """Make families known; a later entry with the same name replaces the earlier one."""
    for family in families:
        _families[family.name] = family


def known() -> tuple[str, ...]:
    """Names of the families known, in alphabetical order."""
    return tuple(sorted(_families))


def family_of(model_type: str) -> Family:
    """Look a family up by Transformers' `model_type`."""
    try:
        return _families[model_type]
    except KeyError:
        raise UnknownFamilyError(
            f"model family `{model_type}` is not known; known: {', '.join(known())}; "
            "docs/guides/add-a-family.md shows how to add it with one entry"
        ) from None
