"""From a model in PyTorch to a graph of ONNX operators with nothing in it that it does not need."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from slimformer.errors import ArtifactError
from slimformer.integrations.onnx.matrices import DOMAIN
from slimformer.integrations.onnx.probing import Batch, dynamic_axes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir
    from transformers import PreTrainedModel

#: Version of the ONNX operators; the first with all of those the families need.
OPSET = 20
#: Outputs that are no answers.
_ASIDE = frozenset({"loss", "past_key_values", "hidden_states", "attentions"})


def answer(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """What a model answers to a batch, by name.

    Raises:
        ArtifactError: Where it does not run.
    """
    try:
        with torch.inference_mode():
            given = model(**batch, return_dict=True)
    except Exception as error:
        raise ArtifactError(
            f"a `{type(model).__name__}` does not run on the batch it is to be compared on: {_reason(error)}; "
            "check its config"
        ) from error
    return {name: value for name, value in given.items() if name not in _ASIDE and _is_float(value)}


def trace(model: PreTrainedModel, batch: Batch, outputs: list[str]) -> Any:
    """Trace a model into an `ONNXProgram` whose axes of examples and tokens may have any length.

    Args:
        model: The model.
        batch: What it is traced with.
        outputs: Which of its answers the program gives.

    Raises:
        ArtifactError: Where PyTorch cannot trace it.
    """
    try:
        with torch.no_grad(), _quietly():
            return torch.onnx.export(
                _Answering(model, list(batch), outputs),
                tuple(batch.values()),
                input_names=list(batch),
                output_names=outputs,
                dynamic_shapes=(dynamic_axes(model, batch),),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise ArtifactError(
            f"a `{type(model).__name__}` of family `{model.config.model_type}` cannot be traced for ONNX: "
            f"{_reason(error)}; nothing was written, export another family"
        ) from error


class _Answering(nn.Module):
    """A model that takes and gives tensors in a fixed order."""

    def __init__(self, model: nn.Module, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = self.model(**dict(zip(self.inputs, tensors, strict=True)), return_dict=True)
        return tuple(given[name] for name in self.outputs)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter from talking; what goes wrong is raised."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _reason(error: BaseException) -> str:
    """The first line of what lies at the bottom of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


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
