"""Views: re-parametrizations of weights that slice, quantize or mask them without touching them."""

from slimformer.views.description import describe, restore
from slimformer.views.mask import MaskView, ScheduledMask, binarize, magnitude_scores, uniform_scores
from slimformer.views.nest import cut_output, restore_output, skip_block, slice_heads, slice_neurons
from slimformer.views.packed import packed_weights
from slimformer.views.quantized import QuantizedView, QuantizedWeight, quantize_weight, quantized_weights
from slimformer.views.rounding import (
    Rounding,
    quantize_activation,
    round_activations,
    rounding_of,
    unround_activations,
    unrounded,
)
from slimformer.views.slice import SliceView
from slimformer.views.snapshot import snapshot
from slimformer.views.stack import Attached, attach, attached, bake, strip
from slimformer.views.view import View
from slimformer.views.width import Extent, Width, carried, checkpoint_contexts, enable_checkpointing

__all__ = [
    "Attached",
    "Extent",
    "MaskView",
    "QuantizedView",
    "QuantizedWeight",
    "Rounding",
    "ScheduledMask",
    "SliceView",
    "View",
    "Width",
    "attach",
    "attached",
    "bake",
    "binarize",
    "carried",
    "checkpoint_contexts",
    "cut_output",
    "describe",
    "enable_checkpointing",
    "magnitude_scores",
    "packed_weights",
    "quantize_activation",
    "quantize_weight",
    "quantized_weights",
    "restore",
    "restore_output",
    "round_activations",
    "rounding_of",
    "skip_block",
    "slice_heads",
    "slice_neurons",
    "snapshot",
    "strip",
    "uniform_scores",
    "unround_activations",
    "unrounded",
]
