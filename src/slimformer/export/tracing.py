"""From a model in PyTorch to a graph of ONNX operators."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slimformer.errors import ArtifactError
from slimformer.export.probing import Batch, dynamic_axes

if TYPE_CHECKING:
    from collections.abc import Iterator

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
