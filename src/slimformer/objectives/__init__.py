"""Objectives: losses over what models compute, as pure functions of tensors."""

from slimformer.objectives.relations import ALL_PAIRS, check_relation_heads, relation_loss

__all__ = ["ALL_PAIRS", "check_relation_heads", "relation_loss"]
