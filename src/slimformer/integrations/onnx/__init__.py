"""Models as files for other runtimes.

Importing this package is quick: torch, transformers and the packages of the extra `onnx` are loaded by the functions
that need them, and nothing here imports training.
"""

from slimformer.integrations.onnx.exporting import Comparison, Difference, ExportResult, Numbers, to_onnx

__all__ = ["Comparison", "Difference", "ExportResult", "Numbers", "to_onnx"]
