"""New processes, from their start to the first answer, and the memory they then hold."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from engine.batches import SHAPES, TINY, Batch
from engine.peers import NATIVE, ORT_INT8, engines, onnx_runtime
from engine.variants import Variants
from harness import RESULTS

if TYPE_CHECKING:
    import argparse

TEXT = "a film to remember, and two hours that I do not want back"
PROCESSES = 9
#: Resident memory now and at most, in MB; what is mapped from a file counts like any other.
_MEMORY = """
with open("/proc/self/status") as status:
    sizes = dict(line.split(":", 1) for line in status)
print(json.dumps([label, *(int(sizes[name].split()[0]) / 1e3 for name in ("VmRSS", "VmHWM"))]))
"""
SCRIPTS = {
    NATIVE: """
import json, sys
from slimformer.runtime.model import NativeModel
model = NativeModel(sys.argv[1], threads=int(sys.argv[3]))
label = int(model.predict(sys.argv[4])[0]["label"].removeprefix("LABEL_"))
assert not {"torch", "transformers"} & set(sys.modules)
"""
    + _MEMORY,
    ORT_INT8: """
import json, sys
import numpy, onnxruntime, tokenizers
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = int(sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[2], settings, providers=["CPUExecutionProvider"])
tokens = tokenizers.Tokenizer.from_file(sys.argv[1] + "/tokenizer.json").encode(sys.argv[4])
columns = {"input_ids": tokens.ids, "attention_mask": tokens.attention_mask, "token_type_ids": tokens.type_ids}
feed = {each.name: numpy.array([columns[each.name]]) for each in session.get_inputs()}
label = int(session.run(["logits"], feed)[0].argmax())
"""
    + _MEMORY,
}


def starts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Median seconds and megabytes by shape and runtime."""
    result: dict[str, Any] = {}
    for name, shape in {"tiny": TINY}.items() if arguments.tiny else SHAPES.items():
        variants = Variants(shape, arguments.seed, arguments.work / name)
        folder, file = variants.saved("ternary"), variants.onnx("dynamic int8")
        tokens = Batch([AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]])
        opened = engines(variants, 1, [NATIVE]) | onnx_runtime(variants, 1, [ORT_INT8])
        labels = {peer: int(each.answer(tokens).argmax()) for peer, each in opened.items()}
        runs: dict[str, list[tuple[float, float, float]]] = {peer: [] for peer in SCRIPTS}
        for number in range(2 if arguments.tiny else PROCESSES + 1):
            for peer, script in SCRIPTS.items():
                command = [sys.executable, "-c", script, str(folder), str(file), str(arguments.threads), TEXT]
                seconds, (label, now, most) = _first_answer(command)
                if label != labels[peer]:
                    raise AssertionError(f"{peer} answers {label} in a new process, and {labels[peer]} here")
                if number:  # the first ones bring the files into memory
                    runs[peer].append((seconds, now, most))
        medians = {peer: list(map(statistics.median, zip(*each, strict=True))) for peer, each in runs.items()}
        result[name] = {
            what: {peer: round(each[at], 3 if at == 0 else 1) for peer, each in medians.items()}
            for at, what in enumerate(("seconds to the first answer", "resident MB", "resident MB at most"))
        }
        print(name, result[name], flush=True)
    return {"starts": result}


def _first_answer(command: list[str]) -> tuple[float, list[Any]]:
    """Seconds until a process prints its line, and what it says."""
    environment = {**os.environ, "PYTHONPATH": str(RESULTS.parents[1] / "src")}
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"a new process ended with {process.returncode}")
    return seconds, json.loads(line)
