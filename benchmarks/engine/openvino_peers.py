"""OpenVINO on the same models: floats, int8 of two kinds, and ternary weights of two bits.

It reads matrices of few bits where a constant of such a type is converted, shifted and scaled on its way to a product,
and with a size of groups it rounds the activations to int8, so that the product is one of whole numbers.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
from openvino import opset13 as operators

from engine.batches import drawn
from engine.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from engine.batches import Batch
    from engine.variants import Variants
    from slimformer.runtime.onnx import Array

#: Inputs whose activations share a scale; it divides all widths, and is quicker than 32.
GROUP = 128
INTEGERS = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP)}


def openvino_peers(
    variants: Variants, threads: int, only: Collection[str] = ()
) -> tuple[dict[str, Peer], dict[str, str]]:
    """Peers by name, and why others are left out."""
    core = openvino.Core()
    floats = {"INFERENCE_PRECISION_HINT": "f32"}
    models: dict[str, tuple[Callable[[], Any], dict[str, str], str]] = {
        "OpenVINO, float32": (lambda: core.read_model(variants.onnx("float")), floats, "float32"),
        "OpenVINO, bfloat16": (
            lambda: core.read_model(variants.onnx("float")),
            {"INFERENCE_PRECISION_HINT": "bf16"},
            "bfloat16",
        ),
        "OpenVINO, int8": (lambda: _calibrated(core, variants), floats, "calibrated int8"),
        "OpenVINO, int8 weights": (lambda: packed(core.read_model(variants.onnx("float")), 8), INTEGERS, "int8"),
        "OpenVINO, 2-bit weights": (
            lambda: packed(core.read_model(variants.onnx("ternary in floats")), 2),
            INTEGERS,
            "2-bit",
        ),
    }
    left_out = {}
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        left_out["OpenVINO, bfloat16"] = "OpenVINO does not offer it on this processor"
    if find_spec("nncf") is None:
        left_out["OpenVINO, int8"] = "`nncf`, which calibrates for it, is not installed"
    common = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads), "ENABLE_CPU_PINNING": "NO"}
    peers = {}
    for name, (read, settings, numbers) in models.items():
        if name in left_out or (only and name not in only):
            continue
        compiled = core.compile_model(read(), "CPU", {**common, **settings})
        peers[name] = Peer(partial(_ask, compiled.create_infer_request(), _inputs(compiled)), numbers)
    return peers, left_out


def _inputs(compiled: Any) -> list[str]:
    return [each.get_any_name() for each in compiled.inputs]


def _ask(request: Any, names: list[str], batch: Batch) -> Array:
    outputs = request.infer(_feed(names, batch))
    return np.array(next(iter(outputs.values())))


def _feed(names: list[str], batch: Batch) -> dict[str, Array]:
    arrays = batch.arrays
    return {name: arrays.get(name, np.zeros_like(arrays["input_ids"])) for name in names}


def _calibrated(core: Any, variants: Variants) -> Any:
    """Weights and activations in int8, with scales of activations that were measured before."""
    path = variants.folder / "openvino_int8.xml"
    if not path.exists():
        import nncf

        nncf.set_log_level(logging.ERROR)
        model = core.read_model(variants.onnx("float"))
        names = [each.get_any_name() for each in model.inputs]
        data = nncf.Dataset([_feed(names, drawn(4, 64, seed)) for seed in range(8)])
        settings = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": 8}
        openvino.save_model(nncf.quantize(model, data, **settings), path, compress_to_fp16=False)
    return core.read_model(path)


def packed(model: Any, bits: int) -> Any:
    """The model, whose products with constant weights now have codes of 8 or 2 bits.

    Args:
        model: A model of OpenVINO, changed in place.
        bits: 8, rounded here, or 2, where a row has three values; a scale for each row.
    """
    changed = 0
    for product in model.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        weight = _constant(product.input_value(1).get_node())
        if weight is None or weight.ndim != 2:
            continue
        rows = weight if product.get_attributes()["transpose_b"] else weight.T
        if bits == 2 and not _is_ternary(rows):
            continue  # the classifier stays in floats
        codes = _codes(rows, bits)
        inputs = product.input_value(0)
        of_codes = operators.matmul(inputs, codes, product.get_attributes()["transpose_a"], True)
        product.output(0).replace(of_codes.output(0))
        changed += 1
    if not changed:
        raise AssertionError(f"no product has a constant weight for {bits} bits")
    return model


def _constant(node: Any) -> Array | None:
    """The weight behind a product, where it is one."""
    if node.get_type_name() == "Constant":
        return np.array(node.data)
    if node.get_type_name() == "Transpose":
        inner = _constant(node.input_value(0).get_node())
        return None if inner is None else inner.transpose(node.input_value(1).get_node().data)
    return None


def _is_ternary(rows: Array) -> bool:
    sizes = np.abs(rows)
    return bool(((sizes == 0) | (sizes == sizes.max(1, keepdims=True))).all())


def _codes(rows: Array, bits: int) -> Any:
    """A weight, [rows, columns], as codes that are converted, shifted and scaled."""
    count, columns = rows.shape
    scales = np.abs(rows).max(1, keepdims=True)
    if bits == 8:
        scales = scales / 127
        codes = operators.constant(np.round(rows / scales).astype(np.int8))
        shifted = operators.convert(codes, openvino.Type.f32)
    else:
        digits = (np.round(rows / scales) + 1).astype(np.uint8).reshape(-1, 4)
        packed = np.bitwise_or.reduce(digits << np.array([0, 2, 4, 6], np.uint8), axis=1).astype(np.uint8)
        tensor = openvino.Tensor(openvino.Type.u2, openvino.Shape([count, columns]))
        tensor.data[:] = packed
        middle = operators.convert(operators.constant(np.ones((count, 1), np.uint8)), openvino.Type.f32)
        shifted = operators.subtract(operators.convert(operators.constant(tensor), openvino.Type.f32), middle)
    return operators.multiply(shifted, operators.constant(scales.astype(np.float32)))
