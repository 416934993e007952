"""Recording what a model computes, by hooks on its parts and only where asked.

Queries, keys and values come from hooks on their projections, so every attention implementation works
and `output_attentions` is never needed. Scores and maps are recomputed from them on demand. Hooks keep
references and return nothing: a tapped forward computes exactly what an untapped one does.
"""

from slimformer.taps.record import BlockRecord, Name
from slimformer.taps.taps import Taps, run_until

__all__ = ["BlockRecord", "Name", "Taps", "run_until"]
