"""Fine-tuning: all weights, the task's own loss."""

from slimformer.methods.finetune.config import FinetuneConfig

__all__ = ["FinetuneConfig"]
