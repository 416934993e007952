"""Views: re-parametrizations of weights that slice, quantize or mask them without touching them."""

from slimformer.views.description import describe, restore
from slimformer.views.mask import MaskView, binarize, magnitude_scores, uniform_scores
from slimformer.views.nest import slice_heads, slice_neurons
from slimformer.views.quantized import QuantizedView, QuantizedWeight, quantize_weight, quantized_weights
from slimformer.views.rounding import (
    Rounding,
    quantize_activation,
    round_activations,
    rounding_of,
    unround_activations,
    unrounded,
)
from slimformer.views.scheduled import ScheduledMask
from slimformer.views.slice import SliceView, Width, carried, checkpoint_contexts, enable_checkpointing
from slimformer.views.snapshot import snapshot
from slimformer.views.stack import Attached, attach, attached, bake, strip
from slimformer.views.view import View

__all__ = [
    "Attached",
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
    "describe",
    "enable_checkpointing",
    "magnitude_scores",
    "quantize_activation",
    "quantize_weight",
    "quantized_weights",
    "restore",
    "round_activations",
    "rounding_of",
    "slice_heads",
    "slice_neurons",
    "snapshot",
    "strip",
    "uniform_scores",
    "unround_activations",
    "unrounded",
]
