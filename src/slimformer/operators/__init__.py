"""Packed weights in ordinary models of torch: operators that multiply with them and look rows up in them as they are.

Importing this package registers `torch.ops.slimformer.linear`, `embedding` and `codes`; where slimformer was installed
without its kernels, or they are switched off, weights are expanded, which a warning says once.
"""

from slimformer.operators.coverage import Coverage, coverage
from slimformer.operators.modules import PackedConv1D, PackedLinear
from slimformer.operators.placing import expand, expand_others, give_operators, hold_packed, without_tied
from slimformer.operators.registered import are_here
from slimformer.operators.tensor import PackedTensor

__all__ = [
    "Coverage",
    "PackedConv1D",
    "PackedLinear",
    "PackedTensor",
    "are_here",
    "coverage",
    "expand",
    "expand_others",
    "give_operators",
    "hold_packed",
    "without_tied",
]
