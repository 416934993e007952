"""Models in ONNX behind the one door: an exported folder, or an ONNX file with a tokenizer beside it."""

from slimformer.inference.onnx.opening import OnnxRunner, OpenOnnx, open_onnx, random_arrays, refuse_flags
from slimformer.inference.onnx.source import OnnxSource, look_up_onnx, onnx_file

__all__ = [
    "OnnxRunner",
    "OnnxSource",
    "OpenOnnx",
    "look_up_onnx",
    "onnx_file",
    "open_onnx",
    "random_arrays",
    "refuse_flags",
]
