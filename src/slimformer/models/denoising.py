"""Denoising autoencoders of sentences (arXiv 2104.06979): a decoder that is the encoder itself, with cross-attention.

Encoder and decoder are one module, so that all they share is one storage. Without a vector to attend to, a block runs
as the base's does; with one, through the cross-attention that lies in it too, behind a mask that hides later tokens.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from slimformer.anatomy import Anatomy
from slimformer.errors import CheckpointError
from slimformer.models.building import build
from slimformer.models.widths import BlockWidth, widths_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

#: Families of which Transformers has a decoder with cross-attention around the blocks of the encoder.
FAMILIES = ("bert", "roberta", "xlm-roberta", "electra")
#: What cross-attention is called in the names of weights.
CROSS = "crossattention"


def as_denoiser(model: PreTrainedModel, *, seed: int = 0) -> PreTrainedModel:
    """A language model of the family with the weights of an encoder, cross-attention in each block and a head.

    Cross-attention is new, and so is a head that the encoder does not bring. Called without anything to attend to, its
    base computes what the encoder computes.

    Args:
        model: The encoder, bare or with a head. What already is such a model is changed in place and returned.
        seed: Seed of the new weights.

    Example:
        >>> denoiser = as_denoiser(encoder)
        >>> vectors = pool(denoiser.base_model(**damaged).last_hidden_state, damaged["attention_mask"])
        >>> logits = decode(denoiser, vectors, texts["input_ids"])
    """
    from transformers import AutoModelForCausalLM

    if has_decoder(model.config):
        return _see_both_sides(model, both=True)
    check_decodes(model.config, type(model).__name__)
    if {*widths_of(model)} != {BlockWidth(model.config.intermediate_size, model.config.num_attention_heads)}:
        raise CheckpointError(
            "the blocks of the model have widths of their own, which a decoder cannot have; start from the model it "
            "was cut from"
        )
    config: Any = copy.deepcopy(model.config)
    config.is_decoder = config.add_cross_attention = True
    attention = model.config._attn_implementation
    denoiser: Any = build(
        lambda: AutoModelForCausalLM.from_config(config, attn_implementation=attention), seed, "decoder"
    )
    denoiser.to(device=model.device, dtype=model.dtype).train(model.training)
    _load(denoiser, model)
    return _see_both_sides(denoiser, both=True)


def as_decoder(denoiser: PreTrainedModel) -> PreTrainedModel:
    """The same model as Transformers knows it: a decoder, also where it attends to nothing. Changed in place."""
    return _see_both_sides(denoiser, both=False)


def as_encoder(denoiser: PreTrainedModel) -> PreTrainedModel:
    """The encoder with the head, a copy without cross-attention: what the family has as a masked language model.

    There is no bare model to be had of it: the pooler that most have would be new.
    """
    from transformers import AutoModelForMaskedLM

    config: Any = copy.deepcopy(denoiser.config)
    config.is_decoder = config.add_cross_attention = False
    encoder: Any = AutoModelForMaskedLM.from_config(config, attn_implementation=denoiser.config._attn_implementation)
    encoder.to(device=denoiser.device, dtype=denoiser.dtype).train(denoiser.training)
    weights = denoiser.state_dict()
    encoder.load_state_dict({name: weight for name, weight in weights.items() if f".{CROSS}." not in name})
    return cast("PreTrainedModel", encoder)


def decode(denoiser: PreTrainedModel, vectors: Tensor, tokens: Tensor) -> Tensor:
    """Logits of the token after each position, from one vector and the tokens up to there.

    Args:
        denoiser: What `as_denoiser` made.
        vectors: All that is known of each text, [batch, hidden].
        tokens: The texts, padding on the right, [batch, length].

    Returns:
        [batch, length, vocabulary].
    """
    import torch

    length, dtype = tokens.shape[1], denoiser.dtype
    # As numbers that are added to the scores, which every implementation of attention takes.
    later = torch.full((length, length), torch.finfo(dtype).min, dtype=dtype, device=tokens.device).triu(1)
    outputs = denoiser(
        input_ids=tokens,
        attention_mask=later.expand(len(tokens), 1, length, length),
        encoder_hidden_states=vectors[:, None],
    )
    return cast("Tensor", outputs.logits)


def has_decoder(config: PretrainedConfig) -> bool:
    """Whether a checkpoint is a decoder with cross-attention in the blocks of an encoder."""
    return config.model_type in FAMILIES and bool(getattr(config, "add_cross_attention", False))


def check_decodes(config: PretrainedConfig, name: str) -> None:
    """Refuse a family that has no decoder with cross-attention.

    Args:
        config: The model's config.
        name: What the user calls the model.
    """
    if config.model_type not in FAMILIES:
        raise CheckpointError(
            f"`{name}` is a `{config.model_type}`, of which Transformers has no decoder that attends to a sentence's "
            f"vector; give a model of type {', '.join(f'`{family}`' for family in FAMILIES)}"
        )


def encoder_weights(denoiser: PreTrainedModel) -> dict[str, Tensor]:
    """The weights that encoder and decoder share, by their names in the base; they are not copied."""
    weights = Anatomy.of(denoiser).base.state_dict(keep_vars=True)
    return {name: weight for name, weight in weights.items() if f".{CROSS}." not in name}


def _load(denoiser: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy the weights of an encoder, and those of its head where it is the same."""
    weights = model.state_dict() if model is not model.base_model else {}
    prefix = f"{denoiser.base_model_prefix}."
    own = denoiser.state_dict()
    head = {
        name: weight
        for name, weight in weights.items()
        if not name.startswith(prefix) and name in own and own[name].shape == weight.shape
    }
    base = {prefix + name: weight for name, weight in Anatomy.of(model).base.state_dict().items()}
    denoiser.load_state_dict({**head, **{name: weight for name, weight in base.items() if name in own}}, strict=False)


def _see_both_sides(denoiser: PreTrainedModel, *, both: bool) -> PreTrainedModel:
    """Say whether a token sees those after it where nothing else is said."""
    denoiser.config.is_decoder = not both
    for block in Anatomy.of(denoiser).blocks:
        for name, module in block.module.named_modules():
            if hasattr(module, "is_causal") and CROSS not in name:
                module.is_causal = not both
    return denoiser
