"""Products of one thread: ternary ones of the engine, int8 ones of ONNX Runtime, and the peak of an instruction."""

from __future__ import annotations

import ctypes
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.timing import take_turns
from slimformer.formats import PackedWeight, find_format
from slimformer.runtime.checkpoint import Checkpoint
from slimformer.runtime.native import instruction_set

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from slimformer.runtime.onnx import Array

#: Inputs and outputs in MiniLM and BERT-base.
PRODUCTS = ((384, 384), (384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768))
ROWS = (1, 16, 128, 1024)
NATIVE, ROUNDED = "slimformer", "slimformer, rounding included"
ORT, ORT_ROUNDED = "ONNX Runtime, int8", "ONNX Runtime, int8, rounding included"
PEAKS = ("maddubs", "vpdpbusd")
SOURCES = Path(__file__).parent / "native"


def build(folder: Path) -> Path:
    """The programs of `native`, compiled where nothing older is there."""
    for command in (
        ["cmake", "-S", str(SOURCES), "-B", str(folder)],
        ["cmake", "--build", str(folder), "--target", "products", "profile"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"`{' '.join(command)}` fails:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder


def open_library(folder: Path) -> ctypes.CDLL:
    """Products without the rounding before them, and the peaks."""
    library = ctypes.CDLL(str(next(build(folder).glob("libproducts.*"))))
    library.product_new.restype = ctypes.c_void_p
    library.product_new.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    library.product_run.argtypes = library.product_delete.argtypes = [ctypes.c_void_p]
    for peak in PEAKS:
        getattr(library, f"peak_{peak}").restype = ctypes.c_double
    return library


def products(arguments: argparse.Namespace) -> dict[str, Any]:
    """Billions of operations a second by inputs x outputs, rows and runtime, and the peaks in the same run."""
    # A tiny run compiles nothing: it has no products without rounding.
    library = None if arguments.tiny else open_library(arguments.work / "native")
    peaks = dict.fromkeys(PEAKS if library is not None else (), 0.0)
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for inputs, outputs in ((64, 48),) if arguments.tiny else PRODUCTS:
        measured[f"{inputs} x {outputs}"] = {}
        for rows in ROWS[:2] if arguments.tiny else ROWS:
            runs = _with_rounding(inputs, outputs, rows, arguments.seed)
            product = None
            if library is not None:
                runs[ORT] = _onnx_product(inputs, outputs, rows)
                product = library.product_new(instruction_set().encode(), rows, inputs, outputs)
                runs[NATIVE] = partial(library.product_run, product)
            seconds = take_turns(runs, 0 if arguments.tiny else 2)
            for peak in peaks:
                peaks[peak] = max(peaks[peak], *(getattr(library, f"peak_{peak}")() for _ in range(5)))
            if library is not None:
                library.product_delete(product)
            operations = 2e-9 * rows * inputs * outputs
            measured[f"{inputs} x {outputs}"][str(rows)] = {
                name: round(operations / value, 1) for name, value in seconds.items()
            }
        print(f"{inputs} x {outputs}", measured[f"{inputs} x {outputs}"], flush=True)
    return {"products": measured, "peaks": {name: round(1e-9 * value, 1) for name, value in peaks.items()}}


def _with_rounding(inputs: int, outputs: int, rows: int, seed: int) -> dict[str, Callable[[], Any]]:
    """Both runtimes on the same floats, after a look at whether they are right."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((rows, inputs)).astype(np.float32)
    codes = draw.integers(-1, 2, (outputs, inputs)).astype(np.int8)
    packed = PackedWeight.of(find_format("ternary"), torch.from_numpy(codes), torch.ones(outputs, 1)).tensors(
        "x.weight"
    )
    stored = {name: tensor.numpy() for name, tensor in packed.items()}
    matrix = Checkpoint("x", stored, all_biased=False).matrix("x", inputs=inputs)
    weights = draw.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    session = _session(_rounding_graph(weights))
    runs = {
        ROUNDED: lambda: matrix.multiply(x, isa=instruction_set()),
        ORT_ROUNDED: lambda: session.run(None, {"x": x})[0],
    }
    for name, expected in ((ROUNDED, x @ codes.T.astype(np.float32)), (ORT_ROUNDED, x @ weights.astype(np.float32))):
        error = np.linalg.norm(runs[name]() - expected) / np.linalg.norm(expected)
        if error > 0.05:
            raise AssertionError(f"{name}: {inputs} x {outputs} with {rows} rows is {error:.3f} away from floats")
    return runs


def _onnx_product(inputs: int, outputs: int, rows: int) -> Callable[[], Any]:
    """`MatMulInteger` on rows that are rounded already."""
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    weights = draw.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    x = draw.integers(0, 256, (rows, inputs)).astype(np.uint8)
    zeros = [numpy_helper.from_array(np.zeros((), kind), name) for kind, name in ((np.uint8, "a"), (np.int8, "b"))]
    node = helper.make_node("MatMulInteger", ["x", "w", "a", "b"], ["y"])
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [None, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [None, outputs])],
        [numpy_helper.from_array(weights, "w"), *zeros],
    )
    session = _session(graph)
    exact = x[:2].astype(np.int64) @ weights.astype(np.int64)
    if not np.array_equal(session.run(None, {"x": x})[0][:2], exact):
        raise AssertionError("MatMulInteger of ONNX Runtime is not exact")
    return lambda: session.run(None, {"x": x})


def _rounding_graph(weights: Array) -> Any:
    """What its tool for dynamic quantization makes of a matrix."""
    from onnx import TensorProto, helper, numpy_helper

    inputs, outputs = weights.shape
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["rounded", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["rounded", "w", "zero", "w_zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["scale", "w_scale"], ["scales"]),
        helper.make_node("Mul", ["floats", "scales"], ["y"]),
    ]
    constants = {"w": weights, "w_zero": np.zeros((), np.int8), "w_scale": np.ones((), np.float32)}
    return helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, outputs])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )


def _session(graph: Any) -> Any:
    """A session of one thread."""
    import onnxruntime
    from onnx import helper

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
