"""Looking into quantized models as the paper does; every function returns data with a picture."""

from slimformer.methods.quantize.analysis.hessian import hessian_spectrum, largest_eigenvalue
from slimformer.methods.quantize.analysis.looking import attention_maps, tokens_in
from slimformer.methods.quantize.analysis.outputs import Case, Ranges, attention_distances, detect_case, dynamic_range
from slimformer.methods.quantize.analysis.pictures import attention_pictures
from slimformer.methods.quantize.analysis.ranking import (
    compare_rank_of_token,
    compare_ranking,
    cover_length_ratio,
    rank_ratio,
    ranking_loss,
)
from slimformer.methods.quantize.analysis.sweeps import beta_sweep, layer_sweep, temperature_sweep
from slimformer.report import Finding

__all__ = [
    "Case",
    "Finding",
    "Ranges",
    "attention_distances",
    "attention_maps",
    "attention_pictures",
    "beta_sweep",
    "compare_rank_of_token",
    "compare_ranking",
    "cover_length_ratio",
    "detect_case",
    "dynamic_range",
    "hessian_spectrum",
    "largest_eigenvalue",
    "layer_sweep",
    "rank_ratio",
    "ranking_loss",
    "temperature_sweep",
    "tokens_in",
]
