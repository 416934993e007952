"""A bank of masks: one base in memory, any number of tasks on it. Nothing here imports training."""

from slimformer.bank.bank import MaskBank

__all__ = ["MaskBank"]
