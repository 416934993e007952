"""Blocks of an encoder with fewer neurons and heads, or without some of the blocks, as tensors for the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.anatomy.family import Fused
from slimformer.runtime.architecture import architecture_of
from slimformer.runtime.building import modules_of
from slimformer.runtime.checkpoint import LAYOUTS, Checkpoint, EngineError
from slimformer.runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.formats.layout import Layout
    from slimformer.runtime.building import ModelParts
    from slimformer.runtime.onnx import Array


@dataclass(frozen=True)
class BlockPart:
    """What is kept of a block: numbers of neurons and of heads, rising; None for all."""

    neurons: Array | None = None
    heads: Array | None = None


def cut(model: ModelParts, parts: Sequence[BlockPart | None]) -> ModelParts:
    """A model of these parts of its blocks; where there is None, a block is left out.

    Args:
        model: The model as its file has it.
        parts: One for each block.
    """
    return _Cutter(model).cut(parts)


class _Cutter:
    def __init__(self, model: ModelParts) -> None:
        self.model = model
        self.settings = Settings(model.config, model.name)
        self.family = architecture_of(model.kind, str(model.name)).family(model.kind)
        self.stored = Checkpoint(model.name, model.tensors)
        self.base = self.stored.prefix(str(self.family.word_embedding or self.family.patch_embedding))
        self.hidden = self.settings.count("hidden_size", "dim")
        self.heads = self.settings.count("num_attention_heads", "n_heads")
        self.group = self.settings.group_size()
        self.tensors: dict[str, Array] = {}

    def cut(self, parts: Sequence[BlockPart | None]) -> ModelParts:
        blocks = f"{self.base}{self.family.blocks}."
        self.tensors = {name: each for name, each in self.model.tensors.items() if not name.startswith(blocks)}
        kept = [number for number, part in enumerate(parts) if part is not None]
        for place, number in enumerate(kept):
            self._add(f"{blocks}{number}.", f"{blocks}{place}.", parts[number] or BlockPart())
        config = dict(self.model.config)
        config["num_hidden_layers" if "num_hidden_layers" in config else "n_layers"] = len(kept)
        if isinstance(config.get("layer_types"), list):
            config["layer_types"] = [config["layer_types"][number] for number in kept]
        return replace(self.model, config=config, tensors=self.tensors, uneven=True)

    def _add(self, at: str, there: str, part: BlockPart) -> None:
        """Take the tensors of a block over under another number."""
        block = {name.removeprefix(at): each for name, each in self.model.tensors.items() if name.startswith(at)}
        modules, family = modules_of(self.family, ""), self.family
        if part.heads is not None:
            width = self.hidden // self.heads
            places = (part.heads[:, None] * width + np.arange(width)).reshape(-1)
            self._cut_rows(block, (family.query, family.key, family.value), places, self.heads * width)
            self._cut_columns(block, modules["output"][0], places)
        if part.neurons is not None:
            self._cut_rows(block, (family.gate, family.up), part.neurons, self._rows(block, family.up))
            self._cut_columns(block, modules["down"][0], part.neurons)
        self.tensors |= {f"{there}{name}": each for name, each in block.items()}

    def _rows(self, block: dict[str, Array], module: Any) -> int:
        path, count = (module.path, module.count) if isinstance(module, Fused) else (module, 1)
        for name in (f"{path}.weight", *(f"{path}.weight.{layout}" for layout in LAYOUTS)):
            if name in block:
                return len(block[name]) // count
        raise EngineError(f"`{self.model.name}` has no `{path}`; copy it again")

    def _cut_rows(self, block: dict[str, Array], modules: Sequence[Any], places: Array, full: int) -> None:
        """Keep some of so many outputs of each of some matrices, which one module may hold."""
        for module in modules:
            if isinstance(module, Fused) and not module.index:
                every = (np.arange(module.count)[:, None] * full + places).reshape(-1)
                self._keep_rows(block, module.path, every)
            elif isinstance(module, str):
                self._keep_rows(block, module, places)

    def _keep_rows(self, block: dict[str, Array], path: str, places: Array) -> None:
        names = ["bias", "weight", *(f"weight.{layout}{end}" for layout in LAYOUTS for end in ("", "_scales"))]
        for name in (f"{path}.{name}" for name in names):
            if name in block and not (name.endswith("_scales") and len(block[name]) == 1):
                block[name] = np.ascontiguousarray(block[name][places])

    def _cut_columns(self, block: dict[str, Array], path: str, places: Array) -> None:
        """Keep some inputs of a module; of a packed one the first ones."""
        if f"{path}.weight" in block:
            block[f"{path}.weight"] = np.ascontiguousarray(block[f"{path}.weight"][:, places])
            return
        for layout in LAYOUTS.values():
            name = f"{path}.weight.{layout.name}"
            if name not in block:
                continue
            if (places != np.arange(len(places))).any():
                raise EngineError(f"`{self.model.name}` is packed, and other than its first neurons are kept of it")
            block[name] = first_codes(block[name], layout, len(places))
            scales = block[f"{name}_scales"]
            if scales.shape[1] > 1 and self.group is not None:
                block[f"{name}_scales"] = np.ascontiguousarray(scales[:, : -(-len(places) // self.group)])


def first_codes(packed: Array, layout: Layout, columns: int) -> Array:
    """The first codes of each row as they are packed alone, uint8 [rows, bytes]: the last unit is filled up anew."""
    cut_off = np.ascontiguousarray(packed[:, : layout.bytes_for(columns)])
    used = columns % layout.digits
    if used:
        last = cut_off[:, -layout.bytes :].astype(np.uint64)
        places = np.arange(layout.bytes, dtype=np.uint64) * np.uint64(8)
        filling = sum(layout.filling * layout.base**place for place in range(used, layout.digits))
        value = (last << places).sum(axis=1, dtype=np.uint64) % np.uint64(layout.base**used) + np.uint64(filling)
        cut_off[:, -layout.bytes :] = (value[:, None] >> places & np.uint64(255)).astype(np.uint8)
    return cut_off
