"""Encoders on the native kernels: ternary matrices, activations of 8 bits, one call for a whole forward.

Of an artifact that `slimformer quantize` wrote, codes and scales are read as they lie in the file and stay packed.
Neither torch nor Transformers is imported. An answer has the same bits alone, in any batch, with any number of threads
and on every instruction set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.anatomy.family import family_of
from slimformer.errors import ConfigError, DataError
from slimformer.files import JsonError, as_path, read_json
from slimformer.runtime.checkpoint import Checkpoint, Codes, EngineError
from slimformer.runtime.native import instruction_set, kernels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.anatomy.family import Family
    from slimformer.runtime.onnx import Array


@dataclass(frozen=True)
class Embeddings:
    """Names of what is added to the word embedding, and of the norm after it."""

    positions: str = "embeddings.position_embeddings"
    types: str | None = "embeddings.token_type_embeddings"
    norm: str = "embeddings.LayerNorm"


@dataclass(frozen=True)
class Head:
    """What follows the blocks.

    Args:
        pooling: `tokens`, `first` or `mean`.
        layers: Name and activation of each layer; a name with `BASE.` lies in the encoder.
        outputs: What Transformers calls the outputs; several share the columns.
    """

    pooling: str
    layers: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ("logits",)


#: Families that the engine runs, by `model_type`.
EMBEDDINGS = {
    "bert": Embeddings(),
    "roberta": Embeddings(),
    "xlm-roberta": Embeddings(),
    "distilbert": Embeddings(types=None),
    "electra": Embeddings(),
}
_POOLED = Head("first", (("BASE.pooler.dense", "tanh"), ("classifier", "none")))
_ROBERTA = Head("first", (("classifier.dense", "tanh"), ("classifier.out_proj", "none")))
_TAGS = Head("tokens", (("classifier", "none"),))
_SPANS = Head("tokens", (("qa_outputs", "none"),), ("start_logits", "end_logits"))
#: Heads by the class in a config, and the family's own where it has another one.
HEADS = {
    "SequenceClassification": {
        "bert": _POOLED,
        "roberta": _ROBERTA,
        "xlm-roberta": _ROBERTA,
        "distilbert": Head("first", (("pre_classifier", "relu"), ("classifier", "none"))),
        "electra": Head("first", (("classifier.dense", "gelu"), ("classifier.out_proj", "none"))),
    },
    "TokenClassification": dict.fromkeys(EMBEDDINGS, _TAGS),
    "QuestionAnswering": dict.fromkeys(EMBEDDINGS, _SPANS),
}
#: Rounding of activations that the kernels do.
ROUNDING = {"bits": 8, "per": "token", "clip": None, "symmetric": True}
ACTIVATIONS = frozenset({"gelu", "relu", "silu"})
CONFIG = "config.json"
#: A longer one is no config.
CONFIG_BYTES = 1 << 24
#: No number of a config reaches it.
MOST = 1 << 24


class NativeEncoder:
    """An encoder in memory. Any number of threads may run it at once.

    Args:
        folder: What `slimformer quantize` wrote.
        threads: Threads of one forward; all that the machine has when not given.

    Raises:
        EngineError: Where the engine does not run such a model; the message says why.
        ConfigError: Where slimformer was installed without the kernels.

    Example:
        >>> NativeEncoder("sentiment-ternary").run([[101, 1037, 2143, 102]]).shape
        (1, 2)
    """

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        self.folder = as_path(folder)
        self.config = _read_config(self.folder)
        self.instruction_set = instruction_set()
        self.threads = kernels().threads() if threads is None else threads
        if self.threads < 1:
            raise ConfigError(f"`threads` is {self.threads}; give 1 or more")
        kind = str(self.config.get("model_type", ""))
        if kind not in EMBEDDINGS:
            raise EngineError(f"the engine does not run `{kind}` of `{folder}`; it runs {', '.join(EMBEDDINGS)}")
        self.head = self._find_head(kind)
        try:
            self._encoder = self._build(family_of(kind), EMBEDDINGS[kind])
        except (kernels().InputError, TypeError) as error:
            raise EngineError(f"the engine does not run `{folder}`: {error}; copy it again") from error

    @property
    def pools(self) -> bool:
        """Whether there is one row for each sequence; else there is one for each token."""
        return self.head.pooling != "tokens"

    @property
    def outputs(self) -> tuple[str, ...]:
        """What Transformers calls the outputs."""
        return self.head.outputs

    def named(self, rows: Array) -> dict[str, Array]:
        """The outputs by their names: each has a column of its own, or the only one has all."""
        names = self.outputs
        return {names[0]: rows} if len(names) == 1 else {name: rows[..., at] for at, name in enumerate(names)}

    def run(self, sequences: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> Array:
        """What the model computes of some sequences of tokens, without padding.

        Args:
            sequences: Tokens, as the tokenizer gives them.
            types: The type of each token; 0 when not given.

        Returns:
            float32, a row for each sequence, or for each token of all sequences one after the other.
        """
        starts = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
        if len(sequences) == 0 or starts[-1] > np.iinfo(np.int32).max:
            raise DataError(f"{len(sequences)} sequences of {starts[-1]} tokens; give 1 or more, and fewer tokens")
        if types is not None and list(map(len, types)) != list(map(len, sequences)):
            raise DataError("types of tokens are not as many as the tokens of each sequence; give one for each")
        ids = np.concatenate([np.asarray(each, np.int32) for each in sequences])
        flat = None if types is None else np.concatenate([np.asarray(each, np.int32) for each in types])
        try:
            outputs: Array = self._encoder.run(ids, flat, starts.astype(np.int32), self.threads, self.instruction_set)
        except kernels().InputError as error:
            raise DataError(f"the engine was given {error}") from error
        if not np.isfinite(outputs).all():
            raise DataError(f"`{self.folder}` answers with NaN or infinity; copy it again, or quantize it anew")
        return outputs

    def _find_head(self, kind: str) -> Head:
        classes, quantization = self.config.get("architectures"), self.config.get("quantization_config")
        if not isinstance(quantization, dict) or quantization.get("activations") != ROUNDING:
            raise EngineError(
                f"`{self.folder}` does not round activations to 8 bits for each token; the engine does, so quantize "
                "the model with `--activations int8 --activation-scale token`"
            )
        name = str(classes[0]) if isinstance(classes, list) and classes else ""
        for ending, heads in HEADS.items():
            if name.endswith(f"For{ending}"):
                return heads[kind]
        if name.endswith("Model"):
            return Head("tokens", outputs=("last_hidden_state",))
        raise EngineError(f"the engine has no head of `{name}` of `{self.folder}`")

    def _build(self, family: Family, embeddings: Embeddings) -> Any:
        stored = Checkpoint(self.folder)
        table = str(family.word_embedding)
        base = stored.prefix(table)
        hidden, ffn = self._count("hidden_size", "dim"), self._count(family.ffn_size)
        if self.config.get("embedding_size", hidden) != hidden:
            raise EngineError(
                f"`{self.folder}` has embeddings of {self.config['embedding_size']} and blocks of {hidden}; the engine "
                "runs embeddings as wide as the blocks"
            )
        activation = self.config.get("hidden_act", self.config.get("activation"))
        if activation not in ACTIVATIONS:
            raise EngineError(f"`{self.folder}` has the activation `{activation}`; the engine has gelu, relu and silu")
        epsilon = self.config.get("layer_norm_eps", 1e-12)
        if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
            raise EngineError(f"config.json of `{self.folder}` has `layer_norm_eps` `{epsilon}`; copy it again")
        words = stored.weight(f"{base}{table}", hidden)
        encoder = kernels().Encoder(
            hidden=hidden,
            heads=self._count("num_attention_heads", "n_heads"),
            ffn=ffn,
            position_offset=self._count("pad_token_id") + 1 if family.positions_after_padding else 0,
            activation=activation,
            words=words.table() if isinstance(words, Codes) else words,
            positions=stored.floats(f"{base}{embeddings.positions}.weight", axes=2),
            types=None if embeddings.types is None else stored.floats(f"{base}{embeddings.types}.weight", axes=2),
            norm_weight=stored.floats(f"{base}{embeddings.norm}.weight"),
            norm_bias=stored.floats(f"{base}{embeddings.norm}.bias"),
            epsilon=epsilon,
        )
        blocks = self._count("num_hidden_layers", "n_layers")
        if blocks == 0:
            raise EngineError(f"config.json of `{self.folder}` has no blocks; copy it again")
        for number in range(blocks):
            _add_block(encoder, stored, f"{base}{family.blocks}.{number}.", family, hidden, ffn, epsilon)
        encoder.pool(self.head.pooling)
        for name, act in self.head.layers:
            _add_layer(encoder, stored, name.replace("BASE.", base), act, hidden)
        return encoder

    def _count(self, *names: str) -> int:
        """A number of the config, by whichever name it has there."""
        value = next((self.config[name] for name in names if name in self.config), None)
        if not isinstance(value, int) or not 0 <= value < MOST:
            raise EngineError(f"config.json of `{self.folder}` has `{names[0]}` `{value}`; copy it again")
        return value


def _add_block(
    encoder: Any, stored: Checkpoint, at: str, family: Family, hidden: int, ffn: int, epsilon: float
) -> None:
    query, key, value = (f"{at}{name}" for name in (family.query, family.key, family.value))
    encoder.add_block(
        qkv=stored.matrix(query, key, value, inputs=hidden),
        output=stored.matrix(f"{at}{family.output}", inputs=hidden),
        attention_norm_weight=stored.floats(f"{at}{family.attention_norm}.weight"),
        attention_norm_bias=stored.floats(f"{at}{family.attention_norm}.bias"),
        up=stored.matrix(f"{at}{family.up}", inputs=hidden),
        down=stored.matrix(f"{at}{family.down}", inputs=ffn),
        output_norm_weight=stored.floats(f"{at}{family.ffn_norm}.weight"),
        output_norm_bias=stored.floats(f"{at}{family.ffn_norm}.bias"),
        epsilon=epsilon,
    )


def _add_layer(encoder: Any, stored: Checkpoint, name: str, activation: str, hidden: int) -> None:
    weight = stored.weight(name, hidden)
    if isinstance(weight, Codes):
        encoder.add_ternary_layer(stored.matrix(name, inputs=hidden), activation)
    else:
        encoder.add_float_layer(weight, stored.floats(f"{name}.bias"), activation)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / CONFIG, CONFIG_BYTES)
    except (OSError, JsonError) as error:
        raise EngineError(
            f"`{folder}` has no config.json that can be read ({error}); give a quantized model"
        ) from error
    if not isinstance(config, dict):
        raise EngineError(f"config.json of `{folder}` is no object; copy the folder again")
    return config
