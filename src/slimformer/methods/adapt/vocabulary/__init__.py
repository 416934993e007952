"""New word pieces for a domain: which it needs, a tokenizer that uses them, and rows for them in the model."""

from slimformer.methods.adapt.vocabulary.choosing import NewPiece, choose_new_pieces, count_words
from slimformer.methods.adapt.vocabulary.extending import (
    ExtensionReport,
    compare_extended,
    extend_model,
    extend_tokenizer,
    extend_vocabulary,
)

__all__ = [
    "ExtensionReport",
    "NewPiece",
    "choose_new_pieces",
    "compare_extended",
    "count_words",
    "extend_model",
    "extend_tokenizer",
    "extend_vocabulary",
]
