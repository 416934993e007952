"""Fine-tuning by LoRA (arXiv 2106.09685) in the loop of all methods: same data, steps and choice of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer import Anatomy
from slimformer.methods.finetune.method import Finetune
from slimformer.methods.run import function_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.train import Objective

RANK, ALPHA = 8, 16


class Lora(Finetune):
    """Train two matrices of rank 8 beside each of the blocks' own, and the head; all else stays."""

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Put them there."""
        from peft import LoraConfig, inject_adapter_in_model
        from torch import nn

        anatomy = Anatomy.of(model)
        inside = {id(weight) for weight in anatomy.base.parameters()}
        blocks = {id(module) for block in anatomy.blocks for module in block.module.modules()}
        chosen = [
            name for name, module in model.named_modules() if isinstance(module, nn.Linear) and id(module) in blocks
        ]
        inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=chosen), model)
        for name, weight in model.named_parameters():
            weight.requires_grad_("lora_" in name or id(weight) not in inside)
        return super().prepare(model)


lora_tune = function_of(Lora)
