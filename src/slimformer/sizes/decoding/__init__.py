"""Decoding with an elastic model on one cache: a smaller size drafts, the size in use verifies."""

from slimformer.sizes.decoding.draft import Draft, DraftStatistics, frequent_tokens
from slimformer.sizes.decoding.generation import install, uninstall

__all__ = ["Draft", "DraftStatistics", "frequent_tokens", "install", "uninstall"]
