"""What masks tell: each analysis returns its data and a plot of them."""

from slimformer.methods.mask.analysis.connectivity import bezier_path, linear_paths
from slimformer.methods.mask.analysis.dissimilarity import mask_dissimilarity
from slimformer.methods.mask.analysis.embedding import cls_map
from slimformer.methods.mask.analysis.ensembles import compare_ensembles
from slimformer.methods.mask.analysis.generalisation import cross_data
from slimformer.methods.mask.analysis.memory import memory_report
from slimformer.methods.mask.analysis.sweeps import layer_sweep, sparsity_sweep
from slimformer.report import Finding

__all__ = [
    "Finding",
    "bezier_path",
    "cls_map",
    "compare_ensembles",
    "cross_data",
    "layer_sweep",
    "linear_paths",
    "mask_dissimilarity",
    "memory_report",
    "sparsity_sweep",
]
