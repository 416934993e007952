"""Tasks for anybody's own files: splits found by file name, columns guessed when there is no doubt."""

from __future__ import annotations

from slimformer.tasks.preset import Preset, register

register(
    Preset("classification", "classification", "texts or pairs with one label each"),
    Preset("regression", "regression", "texts or pairs with one number each"),
    Preset("tagging", "tagging", "words with a tag each"),
    Preset("multiple-choice", "multiple-choice", "questions with several choices"),
    Preset("question-answering", "question-answering", "answers that are spans of a context", max_length=384),
    Preset("language-modelling", "language-modelling", "running text, predicted token by token", max_length=256),
    Preset("image-classification", "image-classification", "images with one label each", max_length=224),
    Preset("retrieval", "retrieval", "texts that should find their like"),
    Preset("similarity", "similarity", "pairs of texts with a number each, compared by embeddings"),
)
