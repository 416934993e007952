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
#: A call begins and ends at a cost beyond that of a few rows, so it is asked for several products.
COPIES, MANY = 16, 128
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
    """Products without Python around them, and the peaks."""
    library = ctypes.CDLL(str(next(build(folder).glob("libproducts.*"))))
    library.product_new.restype = ctypes.c_void_p
    library.product_new.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    library.product_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_bool]
    library.product_delete.argtypes = [ctypes.c_void_p]
    for peak in PEAKS:
        getattr(library, f"peak_{peak}").restype = ctypes.c_double
    return library


def products(arguments: argparse.Namespace) -> dict[str, Any]:
    """Billions of operations a second by inputs x outputs, rows and runtime, and the peaks in the same run."""
    # A tiny run compiles nothing, and has no products without rounding.
    library = None if arguments.tiny else open_library(arguments.work / "native")
    peaks = dict.fromkeys(PEAKS if library is not None else (), 0.0)
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for inputs, outputs in ((64, 48),) if arguments.tiny else PRODUCTS:
        measured[f"{inputs} x {outputs}"] = {}
        for rows in ROWS[:2] if arguments.tiny else ROWS:
            copies = COPIES if rows < MANY else 1
            runs = _with_rounding(inputs, outputs, rows, copies, arguments.seed)
            product = None
            if library is not None:
                runs[ORT] = _onnx_product(inputs, outputs, rows, copies)
                product = library.product_new(instruction_set().encode(), rows, inputs, outputs)
                runs[NATIVE] = partial(library.product_run, product, copies, False)
                runs[ROUNDED] = partial(library.product_run, product, copies, True)
            seconds = take_turns(runs, 0 if arguments.tiny else 2)
            for peak in peaks:
                peaks[peak] = max(peaks[peak], *(getattr(library, f"peak_{peak}")() for _ in range(5)))
            if library is not None:
                library.product_delete(product)
            operations = 2e-9 * rows * inputs * outputs
            measured[f"{inputs} x {outputs}"][str(rows)] = {
                name: round(operations * copies / value, 1) for name, value in seconds.items()
            }
        print(f"{inputs} x {outputs}", measured[f"{inputs} x {outputs}"], flush=True)
    return {"products": measured, "peaks": {name: round(1e-9 * value, 1) for name, value in peaks.items()}}


def _with_rounding(inputs: int, outputs: int, rows: int, copies: int, seed: int) -> dict[str, Callable[[], Any]]:
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
    constants = {"w": weights, "w_scale": np.ones((), np.float32)}
    # What its optimizer makes of the graph that its tool for dynamic quantization writes.
    operator = ("com.microsoft", "DynamicQuantizeMatMul")
    session = _session(operator, ["x", "w", "w_scale"], constants, x, np.float32, copies)
    runs = {
        ROUNDED: lambda: [matrix.multiply(x, isa=instruction_set()) for _ in range(copies)][-1],
        ORT_ROUNDED: lambda: session.run(None, {"x": x})[-1],
    }
    for name, expected in ((ROUNDED, x @ codes.T.astype(np.float32)), (ORT_ROUNDED, x @ weights.astype(np.float32))):
        error = np.linalg.norm(runs[name]() - expected) / np.linalg.norm(expected)
        if error > 0.05:
            raise AssertionError(f"{name}: {inputs} x {outputs} with {rows} rows is {error:.3f} away from floats")
    return runs


def _onnx_product(inputs: int, outputs: int, rows: int, copies: int) -> Callable[[], Any]:
    """`MatMulInteger` on rows that are rounded already, a few times in one graph."""
    draw = np.random.default_rng(0)
    weights = draw.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    x = draw.integers(0, 256, (rows, inputs)).astype(np.uint8)
    constants = {"w": weights, "x_zero": np.zeros((), np.uint8), "w_zero": np.zeros((), np.int8)}
    session = _session(("", "MatMulInteger"), ["x", "w", "x_zero", "w_zero"], constants, x, np.int32, copies)
    exact = x[:2].astype(np.int64) @ weights.astype(np.int64)
    if not np.array_equal(session.run(None, {"x": x})[-1][:2], exact):
        raise AssertionError("MatMulInteger of ONNX Runtime is not exact")
    return lambda: session.run(None, {"x": x})


def _session(
    operator: tuple[str, str], inputs: list[str], constants: dict[str, Array], x: Array, kind: Any, copies: int
) -> Any:
    """A session of one thread with an operator as often as said, which nothing merges."""
    import onnxruntime
    from onnx import helper, numpy_helper

    domain, name = operator
    outputs = constants["w"].shape[1]
    of = helper.np_dtype_to_tensor_dtype
    results = [f"y{copy}" for copy in range(copies)]
    graph = helper.make_graph(
        [helper.make_node(name, inputs, [each], domain=domain) for each in results],
        "products",
        [helper.make_tensor_value_info("x", of(x.dtype), [None, x.shape[1]])],
        [helper.make_tensor_value_info(each, of(np.dtype(kind)), [None, outputs]) for each in results],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
