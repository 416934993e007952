"""A model as an ONNX file: what the file says of itself, and the folder it lies in."""

from slimformer.artifact.storage.onnx.handler import OnnxStorage
from slimformer.artifact.storage.onnx.record import MODEL, RECORD, OnnxRecord, SentenceRecord, data_beside

__all__ = ["MODEL", "RECORD", "OnnxRecord", "OnnxStorage", "SentenceRecord", "data_beside"]
