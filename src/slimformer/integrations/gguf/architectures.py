"""What llama.cpp computes, family by family: names of tensors, settings, and the order it wants rows in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.errors import ArtifactError
from slimformer.integrations.gguf.rope import rope_settings, window_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

#: Settings of a file after the name of its architecture, such as `llama.` → their values.
Settings = dict[str, Any]
#: Ways of `gelu`: llama.cpp computes each by the same table.
GELU = frozenset({"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"})


@dataclass(frozen=True)
class Architecture:
    """How a family is told to llama.cpp.

    Args:
        name: What llama.cpp calls it.
        classes: The classes of `transformers` it computes, heads included.
        activations: Those between the feed-forward matrices.
        settings: What only this architecture has.
        rows: New order of the rows of a matrix or bias, by its name in the file; None for the order they have.
        renamed: Modules the table of the package `gguf` does not know, or knows by another name; None for those that
            are left out.
        added: What is added to a tensor, by its name in the file.
        dropped_positions: Rows of the table of positions that belong to no position.
        causal: Whether a token sees only those before it.
        any_heads: Whether heads need not fill the hidden states exactly.
        biases: Whether anything has a bias.
        computed: Settings of a config that change the forward → the only value that is computed.
    """

    name: str
    classes: frozenset[str]
    activations: frozenset[str]
    settings: Callable[[Any, Anatomy], Settings]
    rows: Callable[[str, Anatomy], Tensor | None] = lambda name, anatomy: None
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    added: Callable[[str], float] = lambda name: 0.0
    dropped_positions: Callable[[Any], int] = lambda config: 0
    causal: bool = True
    any_heads: bool = False
    biases: bool = True
    computed: Mapping[str, Any] = field(default_factory=dict)


def architecture_of(model: PreTrainedModel) -> Architecture:
    """What llama.cpp computes a model as.

    Raises:
        ArtifactError: Where it has no such architecture, or computes another head, activation, width or setting.
    """
    anatomy = Anatomy.of(model)
    name, kind = anatomy.family.name, type(model).__name__
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise ArtifactError(
            f"llama.cpp has no architecture for family `{name}`; export as ONNX, or one of {', '.join(ARCHITECTURES)}"
        )
    if kind not in architecture.classes:
        raise ArtifactError(
            f"a {kind} has a head that llama.cpp does not compute; export it as ONNX, or a model of class "
            f"{' or '.join(sorted(architecture.classes))}"
        )
    activation = _activation(anatomy.config)
    if activation not in architecture.activations:
        raise ArtifactError(
            f"the activation is `{activation}`, and llama.cpp computes {' or '.join(sorted(architecture.activations))} "
            f"in `{architecture.name}`; export the model as ONNX"
        )
    for setting, computed in architecture.computed.items():
        value = getattr(anatomy.config, setting, None)
        if value not in (None, computed):
            raise ArtifactError(
                f"the config has `{setting}` `{value}`, and llama.cpp computes `{architecture.name}` with "
                f"`{computed}`; export the model as ONNX"
            )
    _check_widths(anatomy, architecture)
    return architecture


def settings_of(model: PreTrainedModel, architecture: Architecture) -> Settings:
    """The settings of a model, by their names after that of the architecture."""
    anatomy = Anatomy.of(model)
    config: Any = anatomy.config
    block = anatomy.blocks[0]
    settings: Settings = {
        "context_length": config.max_position_embeddings - architecture.dropped_positions(config),
        "embedding_length": anatomy.hidden,
        "block_count": len(anatomy.blocks),
        "feed_forward_length": block.ffn_width,
        "attention.head_count": block.heads,
        "attention.head_count_kv": block.key_value_heads,
        "vocab_size": _rows(anatomy),
    }
    if architecture.any_heads:
        settings |= {"attention.key_length": block.head_width, "attention.value_length": block.head_width}
    if not architecture.causal:
        settings["attention.causal"] = False
    return settings | architecture.settings(config, anatomy)


def _rows(anatomy: Anatomy) -> int:
    table = anatomy.word_embedding
    assert table is not None
    return table.shape[0]


def _activation(config: Any) -> str:
    names = ("hidden_activation", "hidden_act", "activation_function", "activation")
    return next(str(getattr(config, name)) for name in names if getattr(config, name, None) is not None)


def _check_widths(anatomy: Anatomy, architecture: Architecture) -> None:
    first = anatomy.blocks[0]
    for block in anatomy.blocks:
        for what, width, expected in (
            ("neurons", block.ffn_width, first.ffn_width),
            ("heads", block.heads, first.heads),
        ):
            if width != expected:
                raise ArtifactError(
                    f"block {block.index} has {width:,} {what} and block 0 {expected:,}, and llama.cpp gives all "
                    "blocks one width; export a size whose blocks are alike, or export as ONNX"
                )
    if not architecture.any_heads and first.heads * first.head_width != anatomy.hidden:
        raise ArtifactError(
            f"{first.heads} heads of {first.head_width} do not fill the {anatomy.hidden} hidden values, as llama.cpp "
            f"takes for granted in `{architecture.name}`; export a size with all heads, or export as ONNX"
        )


def _rms(config: Any, anatomy: Anatomy) -> Settings:
    return {"attention.layer_norm_rms_epsilon": float(config.rms_norm_eps)} | rope_settings(config, anatomy)


def _layer_norm(config: Any, anatomy: Anatomy) -> Settings:
    names = ("layer_norm_eps", "layer_norm_epsilon", "norm_eps")
    # The config of DistilBERT has none: its code holds the number.
    return {
        "attention.layer_norm_epsilon": next((getattr(config, name) for name in names if hasattr(config, name)), 1e-12)
    }


def _neox(config: Any, anatomy: Anatomy) -> Settings:
    if not config.attention_bias:
        raise ArtifactError("the attention has no biases, and llama.cpp wants them in `gptneox`; export as ONNX")
    own = {"use_parallel_residual": config.use_parallel_residual}
    return _layer_norm(config, anatomy) | own | rope_settings(config, anatomy)


def _windowed(config: Any, anatomy: Anatomy) -> Settings:
    return _layer_norm(config, anatomy) | window_settings(config)


def _interleaved(name: str, anatomy: Anatomy) -> Tensor | None:
    """Rows of queries and keys for rotations of neighbours, where Transformers rotates halves of a head."""
    block = anatomy.blocks[0]
    part = name.rpartition(".")[0].rpartition(".")[2]
    heads = {"attn_q": block.heads, "attn_k": block.key_value_heads}.get(part)
    if heads is None:
        return None
    return torch.arange(heads * block.head_width).view(heads, 2, -1).mT.flatten()


def _apart(name: str, anatomy: Anatomy) -> Tensor | None:
    """Rows of all queries, then all keys, then all values, where GPT-NeoX keeps the three of a head together."""
    block = anatomy.blocks[0]
    if ".attn_qkv." not in name:
        return None
    return torch.arange(3 * block.heads * block.head_width).view(block.heads, 3, -1).transpose(0, 1).flatten()


def _one(name: str) -> float:
    """Gemma multiplies by 1 + weight in its norms, llama.cpp by the weight."""
    return 1.0 if name.endswith("norm.weight") else 0.0


_SILU = frozenset({"silu"})
_POOLED = {"pooler.dense": "cls", "classifier": "cls.output"}
_DENSE = {"classifier.dense": "cls", "classifier.out_proj": "cls.output", "pooler.dense": None}
#: Encoders that may be told to look back alone.
_BOTH_WAYS = {"is_decoder": False}


def _roberta(prefix: str) -> Architecture:
    return Architecture(
        "bert",
        frozenset({f"{prefix}Model", f"{prefix}ForSequenceClassification"}),
        GELU,
        _layer_norm,
        renamed=_DENSE,
        dropped_positions=lambda config: config.pad_token_id + 1,
        causal=False,
        computed=_BOTH_WAYS,
    )


#: Family of slimformer → what llama.cpp computes it as.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "llama", frozenset({"LlamaModel", "LlamaForCausalLM"}), _SILU, _rms, _interleaved, any_heads=True
    ),
    "qwen2": Architecture("qwen2", frozenset({"Qwen2Model", "Qwen2ForCausalLM"}), _SILU, _rms, any_heads=True),
    "qwen3": Architecture(
        "qwen3", frozenset({"Qwen3Model", "Qwen3ForCausalLM"}), _SILU, _rms, any_heads=True, biases=False
    ),
    "gemma": Architecture(
        "gemma",
        frozenset({"GemmaModel", "GemmaForCausalLM"}),
        GELU,
        _rms,
        added=_one,
        any_heads=True,
        biases=False,
        computed={"use_bidirectional_attention": False},
    ),
    "gpt2": Architecture(
        "gpt2",
        frozenset({"GPT2Model", "GPT2LMHeadModel"}),
        GELU,
        _layer_norm,
        computed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    ),
    "gpt_neox": Architecture("gptneox", frozenset({"GPTNeoXModel", "GPTNeoXForCausalLM"}), GELU, _neox, _apart),
    "bert": Architecture(
        "bert",
        frozenset({"BertModel", "BertForSequenceClassification"}),
        GELU,
        _layer_norm,
        renamed=_POOLED,
        causal=False,
        computed=_BOTH_WAYS,
    ),
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "modernbert": Architecture(
        "modern-bert", frozenset({"ModernBertModel"}), frozenset({"gelu"}), _windowed, causal=False, biases=False
    ),
    "distilbert": Architecture("bert", frozenset({"DistilBertModel"}), GELU, _layer_norm, causal=False),
}
