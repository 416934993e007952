"""Losses: pure functions of tensors, one file for each kind of thing they compare."""

from slimformer.objectives.losses.attention import attention_map_loss, attention_score_loss
from slimformer.objectives.losses.contrastive import contrastive_loss, ranked_pairs_loss
from slimformer.objectives.losses.cosine import cosine_loss
from slimformer.objectives.losses.counting import mean_square
from slimformer.objectives.losses.features import feature_loss
from slimformer.objectives.losses.hidden import hidden_state_loss
from slimformer.objectives.losses.logits import (
    soft_label_loss,
    soft_multilabel_loss,
    soft_token_loss,
    symmetric_kl_loss,
)
from slimformer.objectives.losses.patches import patch_loss, patchify
from slimformer.objectives.losses.relations import check_relation_heads, relation_loss
from slimformer.objectives.losses.weights import (
    frobenius_projection,
    l2_distance,
    mars_distance,
    mars_projection,
)
from slimformer.objectives.spec import ALL_PAIRS

__all__ = [
    "ALL_PAIRS",
    "attention_map_loss",
    "attention_score_loss",
    "check_relation_heads",
    "contrastive_loss",
    "cosine_loss",
    "feature_loss",
    "frobenius_projection",
    "hidden_state_loss",
    "l2_distance",
    "mars_distance",
    "mars_projection",
    "mean_square",
    "patch_loss",
    "patchify",
    "ranked_pairs_loss",
    "relation_loss",
    "soft_label_loss",
    "soft_multilabel_loss",
    "soft_token_loss",
    "symmetric_kl_loss",
]
