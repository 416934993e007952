"""Objectives: losses over what models compute, as pure functions of tensors."""

from slimformer.objectives.attention import attention_map_loss, attention_score_loss
from slimformer.objectives.hidden import hidden_state_loss
from slimformer.objectives.logits import soft_label_loss
from slimformer.objectives.relations import ALL_PAIRS, check_relation_heads, relation_loss
from slimformer.objectives.squares import mean_square

__all__ = [
    "ALL_PAIRS",
    "attention_map_loss",
    "attention_score_loss",
    "check_relation_heads",
    "hidden_state_loss",
    "mean_square",
    "relation_loss",
    "soft_label_loss",
]
