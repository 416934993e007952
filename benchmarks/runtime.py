"""The native engine beside other runtimes: products of matrices, then whole encoders, all in one run that takes turns.

*Products*: ternary weights with activations rounded to int8, one thread, in the shapes of BERT-base and MiniLM,
rounding included. *Encoders*: new weights in the shapes of MiniLM-L6 and BERT-base; ternary on the engine and in torch,
float32 on the engine, in torch and in ONNX Runtime, bfloat16 in torch, dynamic int8 in ONNX Runtime; also on 32 real
texts of different lengths, which others pad. Medians of rounds in which all take turns.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from harness import RESULTS, in_turn, keep, options
from slimformer import Anatomy, models
from slimformer.artifact import pack
from slimformer.formats import PackedWeight, find_format
from slimformer.integrations.onnx import to_onnx
from slimformer.runtime.checkpoint import Checkpoint
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import describe_runtime, is_built
from slimformer.runtime.onnx import OnnxSession
from slimformer.views import QuantizedView, Rounding, attach, round_activations

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from slimformer.runtime.onnx import Array

SHAPES = {
    "MiniLM-L6": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "BERT-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
BATCHES = ((1, 16), (1, 128), (8, 128))
PRODUCTS = ((384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768))
ROWS = (1, 16, 128, 1024)
TEXTS = RESULTS.parents[2] / "shared" / "data" / "sst2" / "dev.tsv"
NATIVE, PEER = "slimformer, ternary", "ONNX Runtime, int8"


def products(tiny: bool) -> dict[str, Any]:
    """Billions of operations a second of one thread, by inputs x outputs and rows."""
    draw = np.random.default_rng(0)
    measured: dict[str, dict[str, float]] = {}
    for inputs, outputs in ((32, 48),) if tiny else PRODUCTS:
        codes = torch.from_numpy(draw.integers(-1, 2, (outputs, inputs)).astype(np.int8))
        packed = PackedWeight.of(find_format("ternary"), codes, torch.ones(outputs, 1)).tensors("x.weight")
        stored = {name: tensor.numpy() for name, tensor in packed.items()}
        matrix = Checkpoint("x", stored, all_biased=False).matrix("x", inputs=inputs)
        batches = {rows: draw.standard_normal((rows, inputs)).astype(np.float32) for rows in ROWS}
        runs = {str(rows): lambda x=x, matrix=matrix: matrix.multiply(x) for rows, x in batches.items()}
        seconds = in_turn(runs, rounds=1 if tiny else 15)
        operations = {rows: 2e-9 * int(rows) * inputs * outputs for rows in seconds}
        measured[f"{inputs} x {outputs}"] = {rows: round(operations[rows] / seconds[rows], 1) for rows in seconds}
    return measured


def ternary(model: Any, folder: Path) -> Any:
    """The same model with three values a weight, saved; what is returned computes it in torch."""
    anatomy = Anatomy.of(model)
    for block in anatomy.blocks:
        for matrix in block.matrices.values():
            attach(matrix, QuantizedView("ternary"))
    attach(anatomy.word_embedding, QuantizedView("ternary"))
    attach(anatomy.pooler, QuantizedView("ternary"))
    round_activations(model, Rounding())
    pack(model)
    model.save_pretrained(folder)
    return model


class Peers:
    """One shape on every runtime.

    Args:
        shape: Of a BERT with new weights.
        work: A folder for files.
        arguments: The benchmark's options.
    """

    def __init__(self, shape: dict[str, int], work: Path, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        config = transformers.BertConfig(**shape, num_labels=2)
        self.float = transformers.BertForSequenceClassification(config).eval()
        sessions = {"ONNX Runtime, float32": "float", PEER: "int8"}
        for numbers in sessions.values():
            to_onnx(self.float, work / f"{numbers}.onnx", numbers=numbers, length=16)  # type: ignore[arg-type]
        self.onnx = {
            name: OnnxSession(work / f"{numbers}.onnx", arguments.threads) for name, numbers in sessions.items()
        }
        self.float.save_pretrained(work / "float")  # packing the other one changes the config they share
        ternary_model = transformers.BertForSequenceClassification(config).eval()
        ternary_model.load_state_dict(self.float.state_dict())
        self.ternary = ternary(ternary_model, work / "ternary")
        self.engines = {
            NATIVE: NativeEncoder(work / "ternary", threads=arguments.threads),
            "slimformer, float32": NativeEncoder(work / "float", threads=arguments.threads),
        }
        self.halves = copy.deepcopy(self.float).bfloat16()

    def runs(self, sequences: list[list[int]]) -> dict[str, Callable[[], Any]]:
        """Ways to answer some sequences; all but the engine pad them."""
        longest = max(map(len, sequences))
        ids = np.array([[*each, *[0] * (longest - len(each))] for each in sequences])
        mask = np.array([[1] * len(each) + [0] * (longest - len(each)) for each in sequences])
        arrays = {"input_ids": ids, "attention_mask": mask}
        runs: dict[str, Callable[[], Any]] = {
            name: lambda engine=engine: engine.run(sequences) for name, engine in self.engines.items()
        }
        runs |= {name: lambda session=session: session.run(arrays) for name, session in self.onnx.items()}
        in_torch_too = {"torch, float32": self.float, "torch, bfloat16": self.halves, "torch, ternary": self.ternary}
        for name, model in in_torch_too.items():
            runs[name] = lambda model=model: in_torch(model, arrays)
        return runs


@torch.inference_mode()
def in_torch(model: Any, arrays: dict[str, Array]) -> Any:
    """A forward in torch."""
    return model(**{name: torch.from_numpy(array) for name, array in arrays.items()}).logits


def encoders(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of every shape, batch and runtime, and how many times as fast as dynamic int8 the engine is."""
    draw = np.random.default_rng(arguments.seed)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    result: dict[str, Any] = {}
    for name, shape in {"tiny": small}.items() if arguments.tiny else SHAPES.items():
        (work / name).mkdir()
        peers = Peers(shape, work / name, arguments)
        batches = {f"{size}x{length}": draw.integers(1000, 30000, (size, length)).tolist() for size, length in BATCHES}
        if arguments.tiny:
            batches = {"2x8": draw.integers(1000, 30000, (2, 8)).tolist()}
        elif TEXTS.exists():
            tokenizer = transformers.AutoTokenizer.from_pretrained(models.resolve("minilm"))
            texts = [line.partition("\t")[0] for line in TEXTS.read_text().splitlines()[1:33]]
            batches["32 texts of SST-2"] = tokenizer(texts)["input_ids"]
        result[name] = {}
        for batch, sequences in batches.items():
            seconds = in_turn(peers.runs(sequences), rounds=1 if arguments.tiny else arguments.rounds, warm_up=2)
            result[name][batch] = {
                "ms": {runtime: round(1e3 * value, 2) for runtime, value in seconds.items()},
                "over ONNX Runtime, int8": round(seconds[PEER] / seconds[NATIVE], 2),
                "over the best of the others": round(
                    min(value for runtime, value in seconds.items() if not runtime.startswith("slimformer"))
                    / seconds[NATIVE],
                    2,
                ),
                "float32 over ONNX Runtime": round(
                    seconds["ONNX Runtime, float32"] / seconds["slimformer, float32"], 2
                ),
            }
    return result


def main() -> None:
    """Measure whatever this machine has kernels for."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    if not is_built():
        print("skipped: slimformer was installed without a compiler")
        return
    torch.set_num_threads(arguments.threads)
    runtime = describe_runtime()
    with tempfile.TemporaryDirectory() as work:
        result = {
            "instruction_set": runtime.instruction_set,
            "products": products(arguments.tiny),
            "encoders": encoders(Path(work), arguments),
        }
    keep("runtime", arguments, result)


if __name__ == "__main__":
    main()
