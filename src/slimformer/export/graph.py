"""Finishing a traced graph: nothing in it of the machine it was made on, and nothing stored larger than it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.export.matrices import DOMAIN

if TYPE_CHECKING:
    import onnx_ir

#: Tensors with fewer values than this are not worth an operator of their own.
WORTHWHILE = 1024


def tidy(model: onnx_ir.Model) -> None:
    """Remove the notes of the exporter, which hold paths and lines of source code and outweigh small weights."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        values += node.outputs
    for value in values:
        value.metadata_props.clear()


def shrink(model: onnx_ir.Model) -> None:
    """Store codes once that are both multiplied and looked up, and floats in 16 bits where that changes none."""
    import onnx_ir as ir

    graph = model.graph
    codes: dict[bytes, onnx_ir.Value] = {}
    # Codes of a matrix have three axes and must be constants; those of a table may be made from them.
    for name, value in sorted(graph.initializers.items(), key=lambda item: -_axes(item[1])):
        tensor = value.const_value
        if tensor is None or tensor.size < WORTHWHILE:
            continue
        if value.dtype == ir.DataType.UINT8:
            first = codes.setdefault(tensor.tobytes(), value)
            if first is not value:
                shape = _constant(graph, f"{name}.shape", np.array(tensor.shape.numpy(), dtype=np.int64))
                _put(graph, value, ir.node("Reshape", [first, shape]))
        elif value.dtype == ir.DataType.FLOAT:
            small = _halved(value)
            if small is not None:
                stored = _constant(graph, f"{name}.half", small)
                _put(graph, value, ir.node("Cast", [stored], {"to": ir.DataType.FLOAT}))


def set_accuracy(model: onnx_ir.Model, level: int) -> None:
    """Set how exactly `MatMulNBits` computes: 4 in int8, 1 in float."""
    import onnx_ir as ir

    for node in model.graph.all_nodes():
        if node.domain == DOMAIN and "accuracy_level" in node.attributes:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", level)


def _axes(value: onnx_ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def _halved(value: onnx_ir.Value) -> np.ndarray[Any, Any] | None:
    """The numbers of a float tensor in 16 bits; None where one of them would change."""
    # Operators of a few bits prepare their weights when they are loaded, and want constants for that.
    if value.const_value is None or any(use.node.domain == DOMAIN for use in value.uses()):
        return None
    numbers = value.const_value.numpy()
    with np.errstate(over="ignore"):
        small = numbers.astype(np.float16)
    return small if np.array_equal(small.astype(np.float32), numbers) else None


def _constant(graph: onnx_ir.Graph, name: str, numbers: np.ndarray[Any, Any]) -> onnx_ir.Value:
    import onnx_ir as ir

    value = ir.val(name, const_value=ir.tensor(numbers, name=name))
    graph.register_initializer(value)
    return value


def _put(graph: onnx_ir.Graph, stored: onnx_ir.Value, node: onnx_ir.Node) -> None:
    """Put what a node gives in the place of a stored tensor."""
    made, name = node.outputs[0], stored.name
    assert name is not None
    made.type, made.shape = stored.type, stored.shape
    stored.replace_all_uses_with(made)
    del graph.initializers[name]
    made.name = name
    graph.insert_before(graph[0], node)
