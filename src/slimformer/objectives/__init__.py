"""Objectives: losses as pure functions of tensors, and weighted sums of named terms over what models compute."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimformer.objectives.loss import Loss
    from slimformer.objectives.losses import (
        ALL_PAIRS,
        attention_map_loss,
        attention_score_loss,
        check_relation_heads,
        contrastive_loss,
        cosine_loss,
        feature_loss,
        frobenius_projection,
        hidden_state_loss,
        l2_distance,
        mars_distance,
        mars_projection,
        mean_square,
        patch_loss,
        patchify,
        ranked_pairs_loss,
        relation_loss,
        soft_label_loss,
        soft_multilabel_loss,
        soft_token_loss,
        symmetric_kl_loss,
    )
    from slimformer.objectives.objective import RecordedStudent, TermObjective, Weighted
    from slimformer.objectives.spec import TermSpec, build_terms, format_terms, parse_terms
    from slimformer.objectives.teacher import Source, Teacher, TeacherCache
    from slimformer.objectives.terms import Mean, Models, Term

__all__ = [
    "ALL_PAIRS",
    "Loss",
    "Mean",
    "Models",
    "RecordedStudent",
    "Source",
    "Teacher",
    "TeacherCache",
    "Term",
    "TermObjective",
    "TermSpec",
    "Weighted",
    "attention_map_loss",
    "attention_score_loss",
    "build_terms",
    "check_relation_heads",
    "contrastive_loss",
    "cosine_loss",
    "feature_loss",
    "format_terms",
    "frobenius_projection",
    "hidden_state_loss",
    "l2_distance",
    "mars_distance",
    "mars_projection",
    "mean_square",
    "parse_terms",
    "patch_loss",
    "patchify",
    "ranked_pairs_loss",
    "relation_loss",
    "soft_label_loss",
    "soft_multilabel_loss",
    "soft_token_loss",
    "symmetric_kl_loss",
]

#: Where names live that are not losses; settings of a method read objectives without importing torch.
_HOMES = {
    "loss": ("Loss",),
    "objective": ("RecordedStudent", "TermObjective", "Weighted"),
    "spec": ("TermSpec", "build_terms", "format_terms", "parse_terms"),
    "teacher": ("Source", "Teacher", "TeacherCache"),
    "terms": ("Mean", "Models", "Term"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    home = next((home for home, names in _HOMES.items() if name in names), "losses")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
