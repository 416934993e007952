"""What nearly every command imports; the server of `tests.forking` has it loaded."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sklearn.metrics
import torch
import transformers.models.bert.modeling_bert

import slimformer.cli
import slimformer.methods
import slimformer.train.loop.trainer

torch.set_num_threads(1)
__all__ = ["sklearn", "slimformer", "transformers"]
