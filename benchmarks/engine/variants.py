"""One model in all the numbers that are compared, in memory and as the files that runtimes open.

The weights are drawn, three times as wide as BERT begins with: attention then tells tokens apart, and answers depend on
all of them.
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
import transformers

from slimformer import Anatomy, models
from slimformer.artifact import pack
from slimformer.integrations.onnx import to_onnx
from slimformer.views import QuantizedView, Rounding, attach, round_activations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LABELS = 16
BLOCKS = (32, 128)


def quantized(model: Any, numbers: str) -> Any:
    """The same model with weights of few bits and activations of 8, packed."""
    anatomy = Anatomy.of(model)
    for block in anatomy.blocks:
        for matrix in block.matrices.values():
            attach(matrix, QuantizedView(numbers))
    attach(anatomy.word_embedding, QuantizedView(numbers))
    attach(anatomy.pooler, QuantizedView(numbers))
    round_activations(model, Rounding())
    pack(model)
    return model


@dataclass(frozen=True)
class Variants:
    """A BERT of one shape.

    Args:
        shape: Its settings.
        seed: What its weights are drawn from.
        folder: Where files are kept; those of an earlier run are taken again if they are of the same model.
    """

    shape: dict[str, int]
    seed: int
    folder: Path

    def __post_init__(self) -> None:
        """Throw away files of another model."""
        packages = ("slimformer", "torch", "transformers", "onnx", "onnxruntime")
        made_of = json.dumps({**self.shape, "seed": self.seed, **{name: version(name) for name in packages}})
        record = self.folder / "made_of.json"
        if not record.exists() or record.read_text() != made_of:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            record.write_text(made_of)

    @cached_property
    def float(self) -> Any:
        """In float32."""
        torch.manual_seed(self.seed)
        config = transformers.BertConfig(**self.shape, num_labels=LABELS, initializer_range=0.06)
        return transformers.BertForSequenceClassification(config).eval()

    @cached_property
    def bfloat16(self) -> Any:
        """The same in bfloat16."""
        return copy.deepcopy(self.float).bfloat16()

    @cached_property
    def ternary(self) -> Any:
        """The same with three values a weight."""
        return quantized(copy.deepcopy(self.float), "ternary")

    @property
    def ternary_in_floats(self) -> Any:
        """A plain model with the weights that the ternary one stands for."""
        plain = copy.deepcopy(self.float)
        plain.load_state_dict(self.ternary.state_dict())
        return plain

    def saved(self, numbers: str) -> Path:
        """The folder of a model, with a tokenizer, in `float`, `bfloat16`, `int8` or `ternary`."""

        def write(folder: Path) -> None:
            model = quantized(copy.deepcopy(self.float), numbers) if numbers == "int8" else getattr(self, numbers)
            model.save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(models.resolve("minilm")).save_pretrained(folder)

        return self._made(numbers, write)

    def onnx(self, numbers: str) -> Path:
        """An ONNX file: `float`, `ternary in floats`, `dynamic int8`, `int8 in blocks`, `2-bit, 32` or `2-bit, 128`."""
        return self._made(f"{numbers}.onnx", lambda path: _write_onnx(self, numbers, path))

    def _made(self, name: str, write: Callable[[Path], Any]) -> Path:
        path = self.folder / name
        if not path.exists():
            draft = self.folder / f"draft of {name}"
            shutil.rmtree(draft, ignore_errors=True)
            write(draft)
            draft.rename(path)
        return path


def _write_onnx(variants: Variants, numbers: str, path: Path) -> None:
    if numbers == "dynamic int8":
        _quantize_dynamic(variants.onnx("float"), path)
    elif numbers == "2-bit":
        to_onnx(variants.ternary, path, numbers="ternary", length=16)
    elif numbers.startswith("2-bit"):
        _set_blocks(variants.onnx("2-bit"), path, int(numbers.split(", ")[1]))
    elif numbers == "int8 in blocks":
        to_onnx(variants.float, path, numbers="int8", length=16)
    else:
        model = variants.float if numbers == "float" else variants.ternary_in_floats
        to_onnx(model, path, numbers="float", length=16)


def _quantize_dynamic(source: Path, path: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # the tool turns matrices over, and stumbles over the shapes they had
    quantize_dynamic(model, path, weight_type=QuantType.QInt8)


def _set_blocks(source: Path, path: Path, size: int) -> None:
    """Write a file with blocks of another size: whole rows share a scale, so that nothing else changes."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(source)
    weights = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMulNBits":
            continue
        attributes = {each.name: each for each in node.attribute}
        columns, rows = attributes["K"].i, attributes["N"].i
        if columns % size:
            raise ValueError(f"rows of {columns} are no whole blocks of {size}")
        attributes["block_size"].i = size
        codes, scales = (numpy_helper.to_array(weights[name]) for name in node.input[1:3])
        # Blocks are filled up with zeros at the end of a row, where any are.
        blocks = codes.reshape(rows, -1)[:, : columns // 4].reshape(rows, columns // size, size // 4)
        scale = scales.reshape(rows, -1)[:, :1].repeat(columns // size, axis=1)
        for name, array in zip(node.input[1:3], (blocks, scale), strict=True):
            weights[name].CopyFrom(numpy_helper.from_array(array.copy(), name))
    onnx.save(model, path)
