"""The native engine beside other runtimes, all of which take turns in one run.

`encoders`: BERT-base and MiniLM-L6 in torch, `torch.compile`, ONNX Runtime and OpenVINO, in floats, int8 and 2 bits, on
batches of one length and on real texts of several, which others pad. `products`: matrices alone, one thread. `starts`:
new processes up to their first answer, and their memory. `growth`: by texts, tokens, layers and threads. `profile`:
where the time of a forward goes. Weights are drawn; every answer is compared with that of torch before it is timed.

Parts may be run one by one; each adds to the result of the others on the same processor. OpenVINO and `nncf` are asked
where they are installed: `pip install --no-deps openvino nncf pydot tabulate`.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from harness import RESULTS, add_work_option, options, processor, work_folder, write
from slimformer.runtime.native import describe_runtime, is_built

if TYPE_CHECKING:
    import argparse

SHAPES = ("MiniLM-L6", "BERT-base")
PARTS = ("encoders", "products", "starts", "growth", "profile")
#: Packages whose versions stand in the result.
PEERS = ("onnxruntime", "openvino", "nncf", "tokenizers")


def measure(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What one part adds to the result."""
    from engine.encoders import encoders
    from engine.growth import growth
    from engine.products import products
    from engine.profiling import profile
    from engine.starts import starts

    parts = {"encoders": encoders, "products": products, "starts": starts, "growth": growth, "profile": profile}
    return parts[part](arguments)


def earlier(name: str, instruction_set: str) -> dict[str, Any]:
    """What was measured before on the same processor."""
    path = RESULTS / f"{name}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    same = record and record["machine"]["processor"] == processor() and "measured" in record["result"]
    return record["result"] if same and record["result"]["instruction_set"] == instruction_set else {}


def main() -> None:
    """Measure the parts that are asked for."""
    parser = options(__doc__)
    add_work_option(parser, "runtime")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES, help="of the part `encoders`")
    parser.add_argument("--seconds", type=float, default=16, help="of all rounds of a batch, where three take less")
    parser.add_argument("--longest", type=int, default=256, help="tokens that real texts are cut to")
    arguments = parser.parse_args()
    if not is_built():
        print("skipped: slimformer was installed without a compiler")
        return
    with work_folder(arguments):
        if arguments.tiny:
            arguments.seconds = 0
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    # What torch.compile makes is kept, so that a second run need not wait for it; it is made for a number of threads.
    compiled = arguments.work / f"compiled_for_{arguments.threads}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled.resolve()))
    import torch

    from engine.growth import pictures
    from engine.targets import targets

    torch.set_num_threads(arguments.threads)
    runtime = describe_runtime()
    fastest = runtime.instruction_set == runtime.available[0]
    name = "runtime" if fastest else f"runtime_{runtime.instruction_set}"
    result = {} if arguments.tiny else earlier(name, runtime.instruction_set)
    result |= {"instruction_set": runtime.instruction_set, "measured": result.get("measured", {})}
    for part in arguments.parts:
        began = time.perf_counter()
        added = measure(part, arguments)
        if part == "encoders":  # shapes may be measured one by one
            added["encoders"] = result.get("encoders", {}) | added["encoders"]
        result |= added
        seconds = round(time.perf_counter() - began)
        result["measured"][part] = {"seconds": seconds, "threads": arguments.threads, "rounds": arguments.seconds}
        result["targets"] = targets(result, runtime.instruction_set, "avx512vnni" in runtime.available)
        if not arguments.tiny:
            write(name, arguments, result, PEERS)
            if part == "growth":
                pictures(result, name, RESULTS)
        print(f"{part}: {seconds} s", flush=True)
    for target in result["targets"]:
        print("met   " if target["met"] else "missed", f"{target['least']:6.2f} of {target['target']}", target["what"])


if __name__ == "__main__":
    main()
