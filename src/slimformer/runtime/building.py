"""From the tensors of a model to an encoder of the kernels."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.anatomy.family import Fused, family_of
from slimformer.runtime.checkpoint import Checkpoint, EngineError
from slimformer.runtime.native import kernels
from slimformer.runtime.settings import MOST, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slimformer.anatomy.family import Family
    from slimformer.runtime.architecture import Architecture, Head
    from slimformer.runtime.onnx import Array

#: Buckets of MPNet's distances, and the distance from which on all share the last one.
BUCKETS, FAR = 32, 128


@dataclass(frozen=True)
class ModelParts:
    """What an encoder is built from.

    Args:
        name: What the user calls it, for messages.
        config: As in `config.json`.
        tensors: By their names.
        from_file: Whether these are the names of a file, which may differ from those of a model in memory.
        uneven: Whether blocks may have other widths than the config says.
    """

    name: str | Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Array]
    from_file: bool = True
    uneven: bool = False

    @property
    def kind(self) -> str:
        """The family."""
        return str(self.config.get("model_type", ""))


@dataclass(frozen=True)
class Built:
    """An encoder of the kernels.

    Args:
        encoder: The encoder, with its head.
        blocks: Outputs and inputs of each matrix of each block, by the names that `modules_of` has for them.
    """

    encoder: Any
    blocks: list[dict[str, tuple[int, int]]]


def modules_of(family: Family, at: str) -> dict[str, list[str]]:
    """The modules that each matrix of a block is made of, one after the other; `at` stands before their names."""
    parts = {
        "qkv": (family.query, family.key, family.value),
        "output": (family.output,),
        "up": (family.gate, family.up),
        "down": (family.down,),
    }
    return {
        name: list(dict.fromkeys(f"{at}{each.path if isinstance(each, Fused) else each}" for each in modules if each))
        for name, modules in parts.items()
    }


def build(model: ModelParts, architecture: Architecture, head: Head) -> Built:
    """An encoder of the kernels, with its head."""
    all_biased = all(model.config.get(name, True) for name in architecture.biased)
    settings = Settings(model.config, model.name)
    stored = Checkpoint(model.name, model.tensors, all_biased, settings.group_size())
    family = architecture.family(model.kind) if model.from_file else family_of(model.kind)
    return _Builder(stored, settings, family, architecture, model.from_file and not model.uneven).build(head)


class BlockReader:
    """Reads what the blocks of encoders and decoders have alike."""

    #: What is added to a variance where a config does not say it.
    epsilon_unsaid = 1e-12

    def __init__(self, stored: Checkpoint, settings: Settings, family: Family) -> None:
        self.stored = stored
        self.settings = settings
        self.family = family
        self.base = stored.prefix(str(family.word_embedding or family.patch_embedding))
        self.hidden = settings.count("hidden_size", "dim")
        self.heads = settings.count("num_attention_heads", "n_heads")
        self.rounds = settings.rounds()
        self.epsilon = settings.epsilon(self.epsilon_unsaid)
        if not self.hidden or not self.heads:
            raise settings.wrong("num_attention_heads", self.heads)

    def matrix(self, *names: str, inputs: int, alike: bool = False) -> Any:
        """One matrix of one or more, of one height if `alike`."""
        matrix = self.stored.matrix(*names, inputs=inputs, alike=alike)
        if matrix.rounds != self.rounds:
            have, need = ("packed", "floats") if matrix.rounds else ("in floats", "packed matrices")
            raise EngineError(
                f"`{names[0]}` of `{self.stored.name}` is {have}; the engine reads {need} in all blocks of such a model"
            )
        return matrix


def rotation_angles(frequencies: Array, longest: int) -> tuple[Array, Array]:
    """Cosines and sines for each position and pair of a head, [positions, pairs], rounded once from 64 bits."""
    turned = (np.arange(longest, dtype=np.float32)[:, None] * frequencies.astype(np.float32)).astype(np.float64)
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


def plain_frequencies(theta: float, width: int) -> Array:
    """How fast each pair of a head of that width turns (arXiv 2104.09864, section 3.2.2)."""
    return (1 / theta ** (np.arange(0, width, 2) / width)).astype(np.float32)


class _Builder(BlockReader):
    def __init__(
        self, stored: Checkpoint, settings: Settings, family: Family, architecture: Architecture, even: bool
    ) -> None:
        settings.refuse_others()
        super().__init__(stored, settings, family)
        self.even = even
        self.architecture = architecture
        self.blocks: list[dict[str, tuple[int, int]]] = []
        if self.hidden % self.heads:
            raise settings.wrong("num_attention_heads", self.heads)

    def build(self, head: Head) -> Built:
        stored, family, base = self.stored, self.family, self.base
        images = family.patch_embedding is not None
        embeddings = self._images() if images else self._texts()
        encoder = kernels().Encoder(
            hidden=self.hidden,
            heads=self.heads,
            activation=self.settings.activation(),
            pre_norm=family.pre_norm,
            gated=family.gate is not None,
            images=images,
            **embeddings,
        )
        if self.architecture.distances is not None:
            encoder.set_position_bias(self._distances(embeddings["longest"]))
        blocks = self.settings.count("num_hidden_layers", "n_layers")
        if blocks == 0:
            raise EngineError(f"config.json of `{stored.name}` has no blocks; copy it again")
        turning = self._turning(blocks, embeddings["longest"])
        # A config in memory says nothing of blocks that lost some, nor that of a model cut to a size.
        neurons = self.settings.neurons(family.ffn_size, blocks) if self.even else [None] * blocks
        for number in range(blocks):
            self._add_block(encoder, number, neurons[number], *turning[number])
        if family.final_norm is not None:
            encoder.set_final_norm(self._norm(f"{base}{family.final_norm}"))
        encoder.pool(head.pooling)
        for layer in head.layers:
            matrix = stored.matrix(layer.name.replace("BASE.", base), inputs=self.hidden)
            norm = None if layer.norm is None else self._norm(layer.norm)
            encoder.add_head_layer(matrix, layer.activation, norm)
        return Built(encoder, self.blocks)

    def _texts(self) -> dict[str, Any]:
        stored, base, where = self.stored, self.base, self.architecture
        width = self.settings.config.get("embedding_size") or self.hidden
        if not isinstance(width, int) or not 0 < width < MOST:
            raise self.settings.wrong("embedding_size", width)
        offset = self.settings.count("pad_token_id") + 1 if self.family.positions_after_padding else 0
        positions = None if where.positions is None else stored.floats(f"{base}{where.positions}", axes=2)
        longest = self.settings.count("max_position_embeddings") if positions is None else len(positions) - offset
        project = where.projection is not None and width != self.hidden
        return {
            "words": stored.table(f"{base}{self.family.word_embedding}", width),
            "positions": positions,
            "types": None if where.types is None else stored.floats(f"{base}{where.types}", axes=2),
            "norm": None if where.norm is None else self._norm(f"{base}{where.norm}"),
            "projection": stored.matrix(f"{base}{where.projection}", inputs=width) if project else None,
            "position_offset": offset,
            "longest": longest,
        }

    def _images(self) -> dict[str, Any]:
        stored, base, where = self.stored, self.base, self.architecture
        size, patch = self.settings.side("image_size"), self.settings.side("patch_size")
        channels = self.settings.count("num_channels")
        tokens = [stored.floats(f"{base}{name}", axes=3) for name in where.tokens]
        patches = f"{base}{self.family.patch_embedding}"
        weight = stored.floats(f"{patches}.weight", axes=4)
        if size % patch or weight.shape != (self.hidden, channels, patch, patch):
            raise self.settings.wrong("patch_size", patch)
        longest = len(tokens) + (size // patch) ** 2
        positions = stored.floats(f"{base}{where.positions}", axes=3)
        shapes = [token.shape for token in tokens]
        if positions.shape != (1, longest, self.hidden) or any(shape != (1, 1, self.hidden) for shape in shapes):
            raise EngineError(f"positions or tokens of `{stored.name}` do not fit its images; copy it again")
        return {
            "words": np.ascontiguousarray(np.concatenate([token[0] for token in tokens])),
            "positions": positions[0],
            "types": None,
            "norm": None,
            "projection": stored.float_matrix([(weight.reshape(len(weight), -1), stored.bias(patches))]),
            "position_offset": 0,
            "longest": longest,
        }

    def _add_block(self, encoder: Any, number: int, neurons: int | None, window: int, rotation: Any) -> None:
        family = self.family
        at = f"{self.base}{family.blocks}.{number}."
        modules = modules_of(family, at)
        up = self.matrix(*modules["up"], inputs=self.hidden)
        ffn = up.outputs // 2 if family.gate else up.outputs
        if neurons not in (None, ffn):
            raise self.settings.wrong(family.ffn_size, neurons)
        qkv = self.matrix(*modules["qkv"], inputs=self.hidden, alike=True)
        inner = qkv.outputs // 3  # less than the width of the block where heads were taken out
        attention_norm = f"{at}{family.attention_norm}"
        first = (
            number == 0 and family.first_block_pinned_by is not None and self.stored.lacks(f"{attention_norm}.weight")
        )
        matrices = {
            "qkv": qkv,
            "output": self.matrix(*modules["output"], inputs=inner),
            "up": up,
            "down": self.matrix(*modules["down"], inputs=ffn),
        }
        self.blocks.append({name: (matrix.outputs, matrix.inputs) for name, matrix in matrices.items()})
        encoder.add_block(
            **matrices,
            attention_norm=None if first else self._norm(attention_norm),
            output_norm=self._norm(f"{at}{family.ffn_norm}"),
            window=window,
            rotation=rotation,
        )

    def _norm(self, name: str) -> Any:
        return kernels().Norm(self.stored.floats(f"{name}.weight"), self.stored.bias(name), self.epsilon)

    def _turning(self, blocks: int, longest: int) -> list[tuple[int, Any]]:
        """How far the attention of each block reaches, 0 for all tokens, and by what angles positions are told."""
        if self.family.scores != "rotary":
            return [(0, None)] * blocks
        config = self.settings.config
        kinds, angles = config.get("layer_types"), config.get("rope_parameters")
        if not isinstance(kinds, list) or len(kinds) != blocks or not isinstance(angles, dict):
            raise self.settings.wrong("layer_types", kinds)
        window = self.settings.count("local_attention") // 2
        if not window:
            raise self.settings.wrong("local_attention", config["local_attention"])
        turned = {}
        for kind in set(map(str, kinds)):
            rule: Any = angles.get(kind)
            theta: Any = (
                rule.get("rope_theta") if isinstance(rule, dict) and rule.get("rope_type") == "default" else None
            )
            fits = type(theta) in (int, float) and 1 < theta <= sys.float_info.max  # JSON has whole numbers beyond it
            if kind not in ("full_attention", "sliding_attention") or not fits:
                raise EngineError(
                    f"config.json of `{self.stored.name}` has `rope_parameters` `{rule}` for `{kind}`; the engine "
                    "turns by the default rule, in blocks of full and of sliding attention"
                )
            turned[kind] = (
                window if kind == "sliding_attention" else 0,
                kernels().Rotation(
                    *rotation_angles(plain_frequencies(float(theta), self.hidden // self.heads), longest)
                ),
            )
        return [turned[str(kind)] for kind in kinds]

    def _distances(self, longest: int) -> Array:
        """What is added to the score of a key by its distance, [heads, 2 · longest - 1]."""
        name = f"{self.base}{self.architecture.distances}"
        table = self.stored.floats(name, axes=2)
        if table.shape != (BUCKETS, self.heads):
            raise EngineError(f"`{name}` of `{self.stored.name}` is of shape {list(table.shape)}; copy it again")
        buckets = [distance_bucket(distance) for distance in range(1 - longest, longest)]
        return np.ascontiguousarray(table[buckets].T)


def distance_bucket(distance: int) -> int:
    """The bucket of T5 (arXiv 1910.10683, section 2.1), as MPNet uses it, for a key that far behind its query."""
    half, exact = BUCKETS // 2, BUCKETS // 4
    away = abs(distance)
    bucket = away
    if away >= exact:
        # In 32 bits, as the model computes it: at a border the last bit decides.
        share = np.log(np.float32(away) / np.float32(exact)) / np.float32(math.log(FAR / exact))
        bucket = min(half - 1, exact + int(share * np.float32(half - exact)))
    return bucket + (half if distance > 0 else 0)
