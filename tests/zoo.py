"""Tiny random models of every family, and inputs for them. Weights are larger than usual, so that
attention is far from uniform and a wrong scale or mask shows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers as hf
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**WIDTH, "vocab_size": 99, "max_position_embeddings": 64}
IMAGE = {**WIDTH, "image_size": 16, "patch_size": 4}

CONFIGS: dict[str, Callable[[], Any]] = {
    "bert": partial(hf.BertConfig, **TEXT),
    "roberta": partial(hf.RobertaConfig, **TEXT, pad_token_id=1),
    "xlm-roberta": partial(hf.XLMRobertaConfig, **TEXT, pad_token_id=1),
    "distilbert": partial(
        hf.DistilBertConfig,
        vocab_size=99,
        dim=48,
        n_layers=3,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=64,
    ),
    "electra": partial(hf.ElectraConfig, **TEXT, embedding_size=24),
    "deberta-v2": partial(
        hf.DebertaV2Config,
        **TEXT,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        conv_kernel_size=3,
    ),
    "modernbert": partial(
        hf.ModernBertConfig,
        **TEXT,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=6,
        global_attn_every_n_layers=2,
    ),
    "mpnet": partial(hf.MPNetConfig, **TEXT),
    "t5": partial(
        hf.T5Config,
        vocab_size=99,
        d_model=48,
        d_kv=12,
        d_ff=64,
        num_layers=3,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
    ),
    "vit": partial(hf.ViTConfig, **IMAGE),
    "deit": partial(hf.DeiTConfig, **IMAGE),
    "vit_mae": partial(hf.ViTMAEConfig, **IMAGE, mask_ratio=0.5),
    "gpt2": partial(hf.GPT2Config, vocab_size=99, n_positions=64, n_embd=48, n_layer=3, n_head=4, n_inner=64),
    "gpt_neox": partial(hf.GPTNeoXConfig, **TEXT),
    "llama": partial(hf.LlamaConfig, **TEXT, num_key_value_heads=2),
    "qwen2": partial(hf.Qwen2Config, **TEXT, num_key_value_heads=2),
    "qwen3": partial(hf.Qwen3Config, **TEXT, num_key_value_heads=2, head_dim=16),
    "gemma": partial(hf.GemmaConfig, **TEXT, num_key_value_heads=1, head_dim=16),
}
#: The blocks of Gemma 3n are unlike all others, so it has tests of its own.
GEMMA_3N = partial(
    hf.Gemma3nTextConfig,
    **{**TEXT, "num_hidden_layers": 4, "intermediate_size": [64, 64, 96, 96]},
    num_key_value_heads=2,
    head_dim=12,
    vocab_size_per_layer_input=99,
    hidden_size_per_layer_input=8,
    num_kv_shared_layers=1,
    laurel_rank=4,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    sliding_window=4,
    activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
)
FAMILIES = tuple(CONFIGS)
IMAGES = ("vit", "deit", "vit_mae")
CAUSAL = ("gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "gemma")
TEXTS = tuple(family for family in FAMILIES if family not in IMAGES)
GATED = ("modernbert", "llama", "qwen2", "qwen3", "gemma")

#: One model with a head per family.
HEADED = {
    "bert": hf.BertForSequenceClassification,
    "roberta": hf.RobertaForTokenClassification,
    "xlm-roberta": hf.XLMRobertaForMaskedLM,
    "distilbert": hf.DistilBertForQuestionAnswering,
    "electra": hf.ElectraForSequenceClassification,
    "deberta-v2": hf.DebertaV2ForSequenceClassification,
    "modernbert": hf.ModernBertForMaskedLM,
    "mpnet": hf.MPNetForMultipleChoice,
    "t5": hf.T5ForTokenClassification,
    "vit": hf.ViTForImageClassification,
    "deit": hf.DeiTForImageClassificationWithTeacher,
    "vit_mae": hf.ViTMAEForPreTraining,
    "gpt2": hf.GPT2LMHeadModel,
    "gpt_neox": hf.GPTNeoXForCausalLM,
    "llama": hf.LlamaForCausalLM,
    "qwen2": hf.Qwen2ForSequenceClassification,
    "qwen3": hf.Qwen3ForCausalLM,
    "gemma": hf.GemmaForCausalLM,
}


def bare(family: str) -> Any:
    """What opens a base model: of T5, `AutoModel` would open a decoder too."""
    return hf.T5EncoderModel if family == "t5" else hf.AutoModel


def build(family: str, attention: str = "sdpa", seed: int = 0) -> nn.Module:
    """A base model in eval mode; families without sdpa fall back to eager."""
    config = CONFIGS[family]()
    torch.manual_seed(seed)
    if family in ("deberta-v2", "mpnet"):
        attention = "eager"
    opener = hf.AutoModelForTextEncoding if family == "t5" else hf.AutoModel
    return enliven(opener.from_config(config, attn_implementation=attention)).eval()


def build_headed(family: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    config.num_labels = 2
    return enliven(HEADED[family](config)).eval()


def enliven(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.2)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def inputs_for(family: str, padding: str | None = "right", batch: int = 3, length: int = 9) -> dict[str, Any]:
    """A batch; for text, examples of different lengths padded on the side named (None: none padded)."""
    generator = torch.Generator().manual_seed(1)
    if family in IMAGES:
        inputs: dict[str, Any] = {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
        if family == "vit_mae":
            inputs["noise"] = torch.rand(batch, 16, generator=generator)
        return inputs
    ids = torch.randint(5, 99, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch if padding else 0):
        cut = 2 * row
        span = slice(length - cut, None) if padding == "right" else slice(0, cut)
        mask[row, span] = 0
        ids[row, span] = 1 if family in ("roberta", "xlm-roberta", "mpnet") else 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family in CAUSAL:
        inputs["use_cache"] = False
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return inputs
