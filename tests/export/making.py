"""Small models to export: one block, any width, float or quantized."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from slimformer.artifact.storage.packed import keep_quantized
from slimformer.artifact.storage.quantizer import adopt
from slimformer.methods.quantize.config import NumberOptions
from slimformer.methods.quantize.student import quantize_numbers
from slimformer.views import bake, quantized_weights
from tests import zoo

SMALL_DECODER = {
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 48,
}


def headed(family: str, **sizes: Any) -> nn.Module:
    """A random model of one block with a head."""
    config = zoo.CONFIGS[family]()
    settings = {"num_hidden_layers": 1, "num_labels": 2, **sizes}
    if family == "vit_mae":
        settings |= SMALL_DECODER
    if family not in zoo.IMAGES and config.pad_token_id is None:
        settings["pad_token_id"] = 0
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    return zoo.enliven(zoo.HEADED[family](config)).eval()


def bert(width: int = 48, **settings: Any) -> nn.Module:
    """A random BERT of one block with a head for three classes."""
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = hf.BertConfig(**sizes, vocab_size=99, max_position_embeddings=64, num_labels=3, **settings)
    torch.manual_seed(0)
    return zoo.enliven(hf.BertForSequenceClassification(config)).eval()


def quantized(model: nn.Module, small: bool = False, **options: Any) -> nn.Module:
    """The model as it is after quantization, without training."""
    quantize_numbers(model, NumberOptions(**options))
    weights = quantized_weights(model)
    bake(model)
    keep_quantized(model, weights, small)
    adopt(model)
    return model.eval()
