"""What the engine knows of each family of decoders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slimformer.runtime.checkpoint import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class DecoderArchitecture:
    """In what a family of decoders differs from Llama.

    Args:
        saved_class: Of Transformers, in a config.
        biases: What has a bias, by roles in a block: always, or where a setting of the config says so.
        tied: Whether the head has the table of words where the config does not say.
        scales_words: Whether what is looked up is multiplied with the root of the width.
        norm_offset: What is added to the weights of norms.
        activations: What the family means by the name of an activation.
        refused: Settings whose values change the forward, and the values that the engine computes.
    """

    saved_class: str
    biases: Mapping[str, tuple[str, ...]]
    tied: bool = False
    scales_words: bool = False
    norm_offset: float = 0.0
    activations: Mapping[str, str] | None = None
    refused: Mapping[str, tuple[Any, ...]] | None = None

    def biased(self, config: Mapping[str, Any]) -> set[str]:
        """The roles in a block that have a bias."""
        return {role for said, roles in self.biases.items() if said == "always" or config.get(said) for role in roles}

    def check(self, config: Mapping[str, Any], name: object) -> None:
        """Refuse what a config can ask of the family and the engine does not do."""
        for setting, usual in (self.refused or {}).items():
            value = config.get(setting)
            if value not in (None, *usual):
                raise EngineError(
                    f"`{name}` has `{setting}` `{value}`; the engine runs decoders with `{usual[0]}`, so leave the "
                    "engine out"
                )


_ATTENTION = ("query", "key", "value")
_LLAMA = DecoderArchitecture(
    "LlamaForCausalLM", {"attention_bias": (*_ATTENTION, "output"), "mlp_bias": ("gate", "up", "down")}
)
_QWEN2 = replace(
    _LLAMA,
    saved_class="Qwen2ForCausalLM",
    biases={"always": _ATTENTION},
    refused={"use_sliding_window": (False,)},
)
#: Families that the engine decodes with, by `model_type`.
DECODERS = {
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": replace(_QWEN2, saved_class="Qwen3ForCausalLM", biases={"attention_bias": (*_ATTENTION, "output")}),
    "gemma": replace(
        _LLAMA,
        saved_class="GemmaForCausalLM",
        biases={"attention_bias": (*_ATTENTION, "output")},
        tied=True,
        scales_words=True,
        norm_offset=1.0,
        # Its first checkpoints say `gelu` and mean this one; so does Transformers.
        activations={"gelu": "gelu_tanh"},
        refused={"use_bidirectional_attention": (False,)},
    ),
}


def decodes(config: Mapping[str, Any]) -> bool:
    """Whether a config is that of a model which goes on with texts, of a family known here or not."""
    classes = config.get("architectures")
    return isinstance(classes, list) and bool(classes) and str(classes[0]).endswith("ForCausalLM")


def decoder_of(config: Mapping[str, Any], name: object) -> DecoderArchitecture:
    """What the engine knows of a decoder; `name` is that of the model, for the message."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in DECODERS:
        raise EngineError(
            f"the engine does not decode with `{kind}` of `{name}`; it does with {', '.join(DECODERS)}, so leave "
            "`engine` out, and torch answers"
        )
    classes = config.get("architectures")
    saved_class = classes[0] if isinstance(classes, list) and classes else None
    if saved_class != DECODERS[kind].saved_class:
        raise EngineError(
            f"`{name}` is a `{saved_class}`; the engine decodes with `{DECODERS[kind].saved_class}` of this family, so "
            "leave `engine` out, and torch answers"
        )
    return DECODERS[kind]
