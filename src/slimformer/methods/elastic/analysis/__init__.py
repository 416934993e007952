"""What nested sizes have in common and how they scale; every function returns data with a picture."""

from slimformer.methods.elastic.analysis.consistency import Agreement, consistency
from slimformer.methods.elastic.analysis.pareto import Front, pareto
from slimformer.methods.elastic.analysis.scaling import Run, ScalingLaw, fit_scaling_law, scaling_laws
from slimformer.report import Finding

__all__ = [
    "Agreement",
    "Finding",
    "Front",
    "Run",
    "ScalingLaw",
    "consistency",
    "fit_scaling_law",
    "pareto",
    "scaling_laws",
]
