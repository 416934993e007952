"""From the tensors of a model to a decoder of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.anatomy.family import family_of
from slimformer.runtime.building import BlockReader, modules_of, rotation_angles
from slimformer.runtime.checkpoint import Checkpoint, EngineError
from slimformer.runtime.decoding.rotary import frequencies
from slimformer.runtime.native import kernels
from slimformer.runtime.settings import Settings

if TYPE_CHECKING:
    from slimformer.runtime.building import ModelParts
    from slimformer.runtime.decoding.architecture import DecoderArchitecture

HEAD = "lm_head"


def build_decoder(model: ModelParts, architecture: DecoderArchitecture) -> Any:
    """A decoder of the kernels, with its head."""
    architecture.check(model.config, model.name)
    settings = Settings(model.config, model.name)
    stored = Checkpoint(model.name, model.tensors, all_biased=False, group_size=settings.group_size())
    return _Builder(stored, settings, architecture, model).build()


class _Builder(BlockReader):
    epsilon_unsaid = 1e-6

    def __init__(
        self, stored: Checkpoint, settings: Settings, architecture: DecoderArchitecture, model: ModelParts
    ) -> None:
        super().__init__(stored, settings, family_of(model.kind))
        self.architecture = architecture
        self.config = model.config
        # Blocks of a model in memory may differ in width.
        self.ffn = settings.count(self.family.ffn_size) if model.from_file else None
        self.biased = architecture.biased(model.config)
        said = self.config.get("head_dim") is not None
        if not said and self.hidden % self.heads:
            raise settings.wrong("num_attention_heads", self.heads)
        self.width = settings.count("head_dim") if said else self.hidden // self.heads
        if not self.width or self.width % 2:
            raise settings.wrong("head_dim", self.width)

    def build(self) -> Any:
        settings, family = self.settings, self.family
        name = f"{self.base}{family.word_embedding}"
        longest = settings.count("max_position_embeddings")
        activation = settings.activation()
        decoder = kernels().Decoder(
            hidden=self.hidden,
            heads=self.heads,
            head_width=self.width,
            longest=longest,
            activation=(self.architecture.activations or {}).get(activation, activation),
            words=self.stored.table(name, self.hidden),
            scale=float(np.sqrt(self.hidden)) if self.architecture.scales_words else 1.0,
        )
        turning = frequencies(self.config, self.width, self.stored.name)
        rotation = kernels().Rotation(*rotation_angles(turning, longest))
        blocks = settings.count("num_hidden_layers")
        if blocks == 0:
            raise EngineError(f"config.json of `{self.stored.name}` has no blocks; copy it again")
        for number in range(blocks):
            self._add_block(decoder, f"{self.base}{family.blocks}.{number}.", rotation)
        decoder.set_final_norm(self._norm(f"{self.base}{family.final_norm}"))
        decoder.set_head(self._head(name))
        return decoder

    def _add_block(self, decoder: Any, at: str, rotation: Any) -> None:
        family = self.family
        self._check_biases(at)
        # Gate and value are computed as one matrix.
        modules = modules_of(family, at)
        up = self.matrix(*modules["up"], inputs=self.hidden, alike=True)
        if self.ffn not in (None, up.outputs // 2):
            raise self.settings.wrong(family.ffn_size, self.ffn)
        qkv = self.matrix(*modules["qkv"], inputs=self.hidden)
        inner = self._rows(at, family.query)
        decoder.add_block(
            qkv=qkv,
            output=self.matrix(*modules["output"], inputs=inner),
            up=up,
            down=self.matrix(*modules["down"], inputs=up.outputs // 2),
            attention_norm=self._norm(f"{at}{family.attention_norm}"),
            output_norm=self._norm(f"{at}{family.ffn_norm}"),
            rotation=rotation,
            query_norm=None if family.query_norm is None else self._norm(f"{at}{family.query_norm}"),
            key_norm=None if family.key_norm is None else self._norm(f"{at}{family.key_norm}"),
        )

    def _check_biases(self, at: str) -> None:
        """Refuse a block in which there are other biases than the config tells of."""
        for role in ("query", "key", "value", "output", "gate", "up", "down"):
            name = f"{at}{getattr(self.family, role)}.bias"
            if self.stored.lacks(name) == (role in self.biased):
                there = "has no" if role in self.biased else "has a"
                raise EngineError(f"`{self.stored.name}` {there} `{name}`, unlike its config.json; copy it again")

    def _rows(self, at: str, role: Any) -> int:
        """Rows of a matrix; those of keys and of values must be as many as each other."""
        heights = [self.stored.rows(f"{at}{each}", self.hidden) for each in (role, self.family.key, self.family.value)]
        if heights[1] != heights[2] or any(height % self.width for height in heights):
            raise EngineError(
                f"queries, keys and values of `{at}` of `{self.stored.name}` have {heights} rows, and heads "
                f"{self.width}; copy it again"
            )
        return heights[0]

    def _norm(self, name: str) -> Any:
        weight = self.stored.floats(f"{name}.weight") + np.float32(self.architecture.norm_offset)
        return kernels().Norm(weight, None, self.epsilon, centred=False)

    def _head(self, words: str) -> Any:
        """The head: a matrix of its own, or the table of words, for which activations are rounded as in blocks."""
        said = self.config.get("tie_word_embeddings", self.architecture.tied)
        if said is True:
            head = self.stored.matrix(words, inputs=self.hidden)
        else:
            head = self.stored.matrix(HEAD, inputs=self.hidden)
        if head.rounds != (self.rounds and said is True):
            kind = "packed" if head.rounds else "in floats"
            raise EngineError(
                f"the head of `{self.stored.name}` is {kind}; the engine reads a packed one where blocks are packed "
                "and it is that of the words, else floats"
            )
        return head
