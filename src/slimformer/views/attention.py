"""Attention whose operands can be rounded and whose scores can be read while they are there.

Registered with Transformers as an attention implementation, so no model is edited. It computes what eager attention
computes: rounded queries and keys make the scores, rounded probabilities and values make the output.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy
from slimformer.errors import ViewError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slimformer.anatomy import Block

#: Name of the implementation in Transformers' registry.
NAME = "slimformer"
#: What other families change attention by.
UNKNOWN = ("softcap", "s_aux")
_ROUNDING = "_slimformer_rounding"
_KEEP = "_slimformer_keep"


class Scores(NamedTuple):
    """Scaled attention scores of one block, [batch, heads, query, key], and the mask that is added to them."""

    scores: Tensor
    mask: Tensor | None

    @property
    def masked(self) -> Tensor:
        """What the softmax saw."""
        return self.scores if self.mask is None else self.scores + self.mask


def goes_through_registry(block: Block) -> bool:
    """Whether a block's attention looks its implementation up in Transformers' registry (DeBERTa, MPNet do not)."""
    # Of a module whose head count follows a width, the class is one of ours and its base that of Transformers.
    modules = (sys.modules[cls.__module__] for cls in type(block.attention).__mro__)
    return any(hasattr(module, "ALL_ATTENTION_FUNCTIONS") for module in modules)


def use_attention(model: nn.Module, name: str = NAME) -> str | None:
    """Make a model attend by the implementation of that name; return the name of the one before."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    anatomy = Anatomy.of(model)
    if not goes_through_registry(anatomy.blocks[0]):
        return None
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    before: str = anatomy.config._attn_implementation
    anatomy.config._attn_implementation = name
    return before


def set_operand_rounding(block: Block, rounding: Any) -> None:
    """Round the operands of a block's attention from now on; None to leave them alone again."""
    hooks = block.attention._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _refuse_others]:
        del hooks[key]
    if rounding is None:
        block.attention.__dict__.pop(_ROUNDING, None)
    else:
        block.attention.__dict__[_ROUNDING] = rounding
        block.attention.register_forward_pre_hook(_refuse_others)


def _refuse_others(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Refuse to attend by another implementation, which would leave the operands in float unnoticed."""
    config: Any = module.config
    if config._attn_implementation != NAME:
        raise ViewError(
            f"attention was set to `{config._attn_implementation}`, which does not round, and that of this model is "
            f'rounded; call `set_attn_implementation("{NAME}")` to go back'
        )


@contextmanager
def kept_scores(model: nn.Module, layers: Iterable[int]) -> Iterator[dict[int, Scores]]:
    """Keep the scores of some blocks while the model, which must attend by `use_attention`, runs inside."""
    blocks = Anatomy.of(model).blocks
    kept: dict[int, Scores] = {}
    keeping = [(index, blocks[index].attention) for index in layers]
    for index, attention in keeping:
        attention.__dict__[_KEEP] = lambda scores, mask, index=index: kept.__setitem__(index, Scores(scores, mask))
    try:
        yield kept
    finally:
        for _, attention in keeping:
            attention.__dict__.pop(_KEEP, None)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """Attention as Transformers calls it, on heads: [batch, heads, length, width]."""
    for name in UNKNOWN:
        if more.get(name) is not None:
            raise ViewError(
                f"`{type(module).__name__}` attends with `{name}`, which cannot be rounded or recorded here; leave "
                "activations in float and learn from hidden states"
            )
    rounding = module.__dict__.get(_ROUNDING)
    if rounding is not None:
        query, key, value = rounding(query), rounding(key), rounding(value)
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.mT
    if position_bias is not None:
        scores = scores + position_bias
    keep = module.__dict__.get(_KEEP)
    if keep is not None:
        keep(scores, attention_mask)
    masked = scores if attention_mask is None else scores + attention_mask
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = masked.softmax(dim=-1, dtype=precise).to(value.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    used = weights if rounding is None else rounding(weights)
    return (used @ value).transpose(1, 2).contiguous(), weights
