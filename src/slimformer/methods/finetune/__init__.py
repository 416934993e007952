"""Fine-tuning: all weights, the task's own loss."""

from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.finetune.method import finetune

__all__ = ["FinetuneConfig", "finetune"]
