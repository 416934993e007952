"""Views: re-parametrizations of weights that slice, ternarize or mask them without touching them."""

from slimformer.views.activation import quantize_activation
from slimformer.views.description import describe, restore
from slimformer.views.mask import MaskView, binarize, magnitude_scores, uniform_scores
from slimformer.views.nest import slice_heads, slice_neurons
from slimformer.views.slice import SliceView, Width
from slimformer.views.stack import Attached, attach, attached, bake, strip
from slimformer.views.ternary import TernaryView, ternarize, ternary_codes
from slimformer.views.view import View

__all__ = [
    "Attached",
    "MaskView",
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
    "restore",
    "slice_heads",
    "slice_neurons",
    "strip",
    "ternarize",
    "ternary_codes",
    "uniform_scores",
]
