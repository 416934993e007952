"""Extending a vocabulary: new word pieces for a domain, a tokenizer that uses them, and rows for them in the model."""

from slimformer.methods.extend.choosing import NewPiece, choose_new_pieces, count_words
from slimformer.methods.extend.config import ExtendConfig
from slimformer.methods.extend.extending import (
    ExtensionReport,
    compare_extended,
    extend_model,
    extend_tokenizer,
    extend_vocabulary,
)

__all__ = [
    "ExtendConfig",
    "ExtensionReport",
    "NewPiece",
    "choose_new_pieces",
    "compare_extended",
    "count_words",
    "extend_model",
    "extend_tokenizer",
    "extend_vocabulary",
]
