"""Masked autoencoders of images (arXiv 2111.06377): a decoder put on a plain ViT, and the ViT taken out again.

The encoder of a `ViTMAEForPreTraining` is a ViT that is shown a quarter of the patches. Its weights have the names and
shapes of a plain ViT's, so that they can be handed over both ways without a change.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, cast

from slimformer.anatomy import Anatomy
from slimformer.errors import ConfigError
from slimformer.models.building import Shape, build
from slimformer.models.widths import BlockWidth, widths_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel, ViTMAEForPreTraining

#: Settings that a ViT and the encoder of a masked autoencoder share by name and meaning, besides the two sizes.
SHARED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
    "num_channels",
    "qkv_bias",
)
#: Blocks of a new decoder. It is thrown away, and even one block serves fine-tuning well (arXiv 2111.06377, table 1a).
#: It sees all patches, so that the eight of the paper would cost a small encoder more than its own blocks.
DECODER_LAYERS = 2
#: The widest decoder that is made unasked, and the width of its heads, both of arXiv 2111.06377.
DECODER_WIDTH, DECODER_HEAD = 512, 32
#: A vector of fixed positions is made of sines and cosines of height and width.
WAVES = 4


def as_autoencoder(
    model: PreTrainedModel,
    decoder: Shape | None = None,
    *,
    mask_ratio: float = 0.75,
    normalize: bool = False,
    seed: int = 0,
) -> ViTMAEForPreTraining:
    """Put a new decoder on a copy of a plain ViT.

    Of all patches the encoder computes what the ViT computes (`unmasked_features`), and its position embeddings are
    trained as those of the ViT are. Only dropout of the embeddings, which such an encoder does not have, is left out.

    Args:
        model: A ViT, bare or with a head, which stays behind. What already is a masked autoencoder is returned as it
            is, and whatever else is asked for does not change it.
        decoder: Sizes of the decoder; by default two blocks as wide as the encoder, at most 512.
        mask_ratio: Part of the patches that is hidden.
        normalize: Whether the targets are pixels normalised patch by patch (arXiv 2111.06377, section 3).
        seed: Seed of the decoder's weights.

    Example:
        >>> autoencoder = as_autoencoder(vit, Shape(layers=4, hidden=128, heads=4))
        >>> autoencoder(pixel_values, noise=noise).loss.backward()
        >>> vit = as_vit(autoencoder, like=vit)
    """
    from transformers import ViTMAEForPreTraining

    if isinstance(model, ViTMAEForPreTraining):
        return model
    _check_plain(model)
    config = _autoencoder_config(model.config, decoder or Shape.make({}), mask_ratio, normalize)
    attention = model.config._attn_implementation
    autoencoder: Any = build(
        lambda: ViTMAEForPreTraining._from_config(config, attn_implementation=attention), seed, "decoder"
    )
    # Transformers leaves the fixed positions of a new decoder at 0, so that it could not tell hidden patches apart.
    autoencoder.decoder.initialize_weights(patch_count(config))
    autoencoder.to(device=model.device, dtype=model.dtype).train(model.training)
    _load(autoencoder.vit, encoder_weights(model))
    # Transformers keeps these fixed too; a ViT has learned its own.
    positions = cast("Any", model.base_model).embeddings.position_embeddings
    autoencoder.vit.embeddings.position_embeddings.requires_grad_(positions.requires_grad)
    return cast("ViTMAEForPreTraining", autoencoder)


def as_vit(autoencoder: PreTrainedModel, like: PreTrainedModel | None = None) -> PreTrainedModel:
    """The encoder of a masked autoencoder as a plain ViT with the same weights, bit for bit.

    Args:
        autoencoder: The masked autoencoder, which is not changed.
        like: The ViT it was made of: class and config are taken from it, and so are pooler and head, if it has them.
            None for a bare ViT without a pooler, as for an autoencoder that was one from the beginning.
    """
    import torch
    from transformers import ViTConfig, ViTModel

    weights = encoder_weights(autoencoder)
    if like is not None:
        vit: Any = copy.deepcopy(like)
        vit.to(device=autoencoder.device, dtype=autoencoder.dtype)
        _load(vit.base_model, weights)
        return cast("PreTrainedModel", vit)
    config = cast("Any", ViTConfig)(**_shared(autoencoder.config))
    config._attn_implementation = autoencoder.config._attn_implementation
    config.dtype = autoencoder.dtype
    with torch.device("meta"):
        vit = ViTModel(config, add_pooling_layer=False)
    vit.load_state_dict({name: weight.clone() for name, weight in weights.items()}, assign=True)
    return cast("PreTrainedModel", vit.requires_grad_(True).train(autoencoder.training))


def unmasked_features(autoencoder: nn.Module, pixel_values: Tensor) -> Tensor:
    """What the encoder of a masked autoencoder computes of all patches: the last hidden states of a plain ViT.

    No setting is changed for it, so that other threads can run the same model masked meanwhile.

    Args:
        autoencoder: The masked autoencoder, or its encoder.
        pixel_values: [batch, channels, height, width].

    Returns:
        [batch, 1 + patches, hidden]: [CLS] and the patches in their order, after the final norm.
    """
    import torch

    encoder: Any = getattr(autoencoder, "base_model", autoencoder)
    embeddings = encoder.embeddings
    positions = embeddings.position_embeddings  # [1, 1 + patches, hidden]
    patches = embeddings.patch_embeddings(pixel_values) + positions[:, 1:]
    first = embeddings.cls_token + positions[:, :1]
    hidden = torch.cat([first.expand(len(patches), -1, -1), patches], dim=1)
    for layer in encoder.layers:
        hidden = layer(hidden)
    return cast("Tensor", encoder.layernorm(hidden))


def hides_patches(config: PretrainedConfig) -> bool:
    """Whether a model looks at some of the patches only, and draws which."""
    return config.model_type == "vit_mae"


def patch_count(config: Any) -> int:
    """Patches of an image, whichever way its sides are written."""
    (height, width), (down, across) = _sides(config.image_size), _sides(config.patch_size)
    return (height // down) * (width // across)


def encoder_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights that a ViT and the encoder of a masked autoencoder have in common, by their names in either."""
    weights = Anatomy.of(model).base.state_dict()
    return {
        name: weight
        for name, weight in weights.items()
        if not name.startswith("pooler.") and name != "embeddings.mask_token"
    }


def _check_plain(model: PreTrainedModel) -> None:
    if model.config.model_type not in ("vit", "vit_mae"):
        raise ConfigError(
            f"the model is a `{model.config.model_type}`, and patches are hidden from plain ViTs alone; give a model "
            "of type `vit` or `vit_mae`"
        )
    config: Any = model.config
    if {*widths_of(model)} != {BlockWidth(config.intermediate_size, config.num_attention_heads)}:
        raise ConfigError(
            "the blocks of the model have widths of their own, which a masked autoencoder cannot have; start from the "
            "model it was cut from"
        )


def _autoencoder_config(config: Any, decoder: Shape, mask_ratio: float, normalize: bool) -> Any:
    from transformers import ViTMAEConfig

    shared = _shared(config)
    image, patch = (_side(config, name) for name in ("image_size", "patch_size"))
    if image % patch:
        raise ConfigError(
            f"`patch_size` is {patch}, which does not divide `image_size` {image}, so that some pixels belong to no "
            "patch; give a model whose patches cover the image"
        )
    count = patch_count(config)
    if not (0 < mask_ratio < 1 and 1 <= int(count * (1 - mask_ratio)) < count):
        raise ConfigError(
            f"`mask_ratio` is {mask_ratio:g}, and of {count} patches some have to be hidden and one has to stay; give "
            "a number between 0 and 1, such as 0.75"
        )
    hidden, heads = _decoder_width(config, decoder)
    return ViTMAEConfig(
        **{**shared, "image_size": image, "patch_size": patch},
        decoder_hidden_size=hidden,
        decoder_num_attention_heads=heads,
        decoder_num_hidden_layers=decoder.layers or DECODER_LAYERS,
        decoder_intermediate_size=decoder.ffn or 4 * hidden,
        mask_ratio=mask_ratio,
        norm_pix_loss=normalize,
    )


def _shared(config: Any) -> dict[str, Any]:
    names = (*SHARED, "image_size", "patch_size", *(["head_dim"] if hasattr(config, "head_dim") else []))
    return {name: getattr(config, name) for name in names}


def _decoder_width(config: Any, decoder: Shape) -> tuple[int, int]:
    """Width and heads of a decoder; those that are not given follow from what is."""
    fallback = max(WAVES, min(DECODER_WIDTH, config.hidden_size) // WAVES * WAVES)
    if decoder.hidden is None and decoder.heads is not None:
        step = math.lcm(WAVES, decoder.heads)
        fallback = max(step, fallback // step * step)
    hidden = decoder.hidden or fallback
    if hidden % WAVES:
        raise ConfigError(f"`hidden` of the decoder is {hidden}; give a multiple of {WAVES}, such as {fallback}")
    most = max(1, hidden // DECODER_HEAD)
    heads = decoder.heads or max(number for number in range(1, most + 1) if hidden % number == 0)
    if hidden % heads:
        raise ConfigError(
            f"`heads` of the decoder is {heads}, which does not divide its `hidden` {hidden}; give another, such as 1"
        )
    return hidden, heads


def _sides(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _side(config: Any, name: str) -> int:
    height, width = _sides(getattr(config, name))
    if height != width:
        raise ConfigError(
            f"`{name}` is {height} by {width}, and masked autoencoders take squares alone; give a model of square "
            "images and patches"
        )
    return height


def _load(encoder: Any, weights: dict[str, Tensor]) -> None:
    """Copy weights into an encoder that has to have the same ones; its pooler stays as it is."""
    own = encoder_weights(encoder)
    for name in sorted({*own, *weights}):
        shapes = [list(each[name].shape) if name in each else "missing" for each in (weights, own)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"`{name}` is {shapes[0]} in one model and {shapes[1]} in the other; give the ViT that the autoencoder "
                "was made of"
            )
    encoder.load_state_dict(weights, strict=False)
