"""Trimming: dropping the word pieces that a domain does not use, from embedding and tokenizer together."""

from slimformer.methods.trim.config import TrimConfig
from slimformer.methods.trim.model import domain_pieces, model_pieces, trim_model
from slimformer.methods.trim.pieces import (
    TextCoverage,
    TrimReport,
    choose_pieces,
    compare_tokenizers,
    count_pieces,
    pieces_of,
)
from slimformer.methods.trim.tokenizer import trim_tokenizer

__all__ = [
    "TextCoverage",
    "TrimConfig",
    "TrimReport",
    "choose_pieces",
    "compare_tokenizers",
    "count_pieces",
    "domain_pieces",
    "model_pieces",
    "pieces_of",
    "trim_model",
    "trim_tokenizer",
]
