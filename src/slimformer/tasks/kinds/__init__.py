"""The kinds of task, one file each; loaded when first needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.preset import KindName

_CLASSES: dict[KindName, str] = {
    "classification": "classification.Classification",
    "regression": "regression.Regression",
    "tagging": "tagging.Tagging",
    "multiple-choice": "multiple_choice.MultipleChoice",
    "question-answering": "question_answering.QuestionAnswering",
    "language-modelling": "language_modelling.LanguageModelling",
    "last-word": "last_word.LastWord",
    "image-classification": "image_classification.ImageClassification",
    "retrieval": "retrieval.Retrieval",
    "similarity": "similarity.Similarity",
}


def kind_of(name: KindName, settings: Mapping[str, Any]) -> Kind:
    """The kind of that name, with a preset's settings."""
    module, _, class_name = _CLASSES[name].partition(".")
    kind: type[Kind] = getattr(import_module(f"slimformer.tasks.kinds.{module}"), class_name)
    return kind(settings)
