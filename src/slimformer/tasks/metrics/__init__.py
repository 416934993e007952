"""Metrics: pure functions of what is true and what was predicted, plain numbers out."""
