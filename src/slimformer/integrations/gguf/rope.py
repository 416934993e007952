"""Rotary positions as settings and a tensor of llama.cpp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.anatomy import Anatomy

#: Ways of stretching rotations that a file can tell.
KNOWN = ("default", "linear", "llama3")
#: The family of which parts of heads may be rotated; others read no such setting.
PARTLY = "gpt_neox"
#: What blocks attend to: all tokens, or those near.
FULL, WINDOW = "full_attention", "sliding_attention"
#: The tensor by which llama.cpp divides each frequency.
FACTORS = "rope_freqs.weight"


def rope_settings(config: Any, anatomy: Anatomy) -> dict[str, Any]:
    """The settings of rotary positions.

    Raises:
        ArtifactError: Where they are stretched in a way that a file cannot tell, or attention slides.
    """
    rope = _parameters(config)
    kind = rope.get("rope_type", "default")
    if kind not in KNOWN:
        raise ArtifactError(
            f"rotary positions are stretched by `{kind}`, and an export to GGUF knows {', '.join(KNOWN)}; export the "
            "model as ONNX"
        )
    if WINDOW in (getattr(config, "layer_types", None) or ()):
        raise ArtifactError(
            "some blocks attend to a sliding window, which an export to GGUF does not know; export the model as ONNX"
        )
    width, share = anatomy.blocks[0].head_width, rope.get("partial_rotary_factor", 1.0)
    if share != 1 and anatomy.family.name != PARTLY:
        raise ArtifactError(
            f"`partial_rotary_factor` is {share:g}, and family `{anatomy.family.name}` rotates whole heads; take it "
            "out of `rope_parameters`"
        )
    turned = int(width * share)
    if turned % 2:
        raise ArtifactError(
            f"{turned} of the {width} values of a head are rotated, and llama.cpp rotates pairs; export the model as "
            "ONNX"
        )
    settings: dict[str, Any] = {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": turned,
    }
    if kind == "linear":
        settings |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    return settings


def window_settings(config: Any) -> dict[str, Any]:
    """The settings of blocks that attend to a window around a token, between others that attend to all.

    Raises:
        ArtifactError: Where those others do not come at a fixed distance, from the first block on.
    """
    types = list(config.layer_types)
    ropes = config.rope_parameters
    everywhere = [index for index, kind in enumerate(types) if kind == FULL]
    period = next((index for index in everywhere if index), len(types))
    if everywhere != list(range(0, len(types), period)) or any(
        rope.get("rope_type", "default") != "default" for rope in ropes.values()
    ):
        raise ArtifactError(
            f"the blocks attend by {', '.join(types)}, and llama.cpp expects one of `{FULL}` at a fixed distance, with "
            "rotations that are not stretched; export the model as ONNX"
        )
    return {
        "attention.sliding_window": config.local_attention,
        "attention.sliding_window_pattern": period,
        "rope.freq_base": float(ropes[FULL]["rope_theta"]),
        "rope.freq_base_swa": float(ropes[WINDOW]["rope_theta"]),
        "rope.scaling.type": "none",
    }


def rope_factors(config: Any, anatomy: Anatomy) -> Tensor | None:
    """What each frequency is divided by, as Llama 3.1 stretches the slow ones; None where nothing is divided so."""
    rope = _parameters(config)
    if rope.get("rope_type") != "llama3":
        return None
    width, factor = anatomy.blocks[0].head_width, float(rope["factor"])
    lengths = 2 * math.pi * rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    ratio = rope["original_max_position_embeddings"] / lengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = ((ratio - low) / (high - low)).clamp(0, 1)
    factors: Tensor = 1 / ((1 - smooth) / factor + smooth)
    return factors.float()


def _parameters(config: Any) -> dict[str, Any]:
    rope: dict[str, Any] | None = getattr(config, "rope_parameters", None)
    return {} if rope is None else rope
