"""Views: re-parametrizations of weights that slice, ternarize or mask them without touching them."""

from slimformer.views.activation import Rounding, quantize_activation
from slimformer.views.binary import BinaryView, sign_weight
from slimformer.views.codes import QuantizedWeight, quantized_weights
from slimformer.views.description import describe, restore
from slimformer.views.integer import IntegerView, round_weight
from slimformer.views.mask import MaskView, binarize, magnitude_scores, uniform_scores
from slimformer.views.nest import slice_heads, slice_neurons
from slimformer.views.quantized import QuantizedView
from slimformer.views.rounding import round_activations, rounding_of, unround_activations, unrounded
from slimformer.views.slice import SliceView, Width
from slimformer.views.stack import Attached, attach, attached, bake, strip
from slimformer.views.ternary import TernaryView, ternarize, ternary_codes
from slimformer.views.view import View

__all__ = [
    "Attached",
    "BinaryView",
    "IntegerView",
    "MaskView",
    "QuantizedView",
    "QuantizedWeight",
    "Rounding",
    "SliceView",
    "TernaryView",
    "View",
    "Width",
    "attach",
    "attached",
    "bake",
    "binarize",
    "describe",
    "magnitude_scores",
    "quantize_activation",
    "quantized_weights",
    "restore",
    "round_activations",
    "round_weight",
    "rounding_of",
    "sign_weight",
    "slice_heads",
    "slice_neurons",
    "strip",
    "ternarize",
    "ternary_codes",
    "uniform_scores",
    "unround_activations",
    "unrounded",
]
