"""What the engine knows of each family: where its parts lie in a file, and what follows the blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slimformer.anatomy.family import family_of
from slimformer.runtime.checkpoint import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimformer.anatomy.family import Family
    from slimformer.runtime.onnx import Array


@dataclass(frozen=True)
class Architecture:
    """How the first hidden states come about, and what a file calls otherwise than the model does.

    Args:
        classes: How the names of its classes begin.
        prefix: What stands before the names of the encoder in a model with a head.
        positions: The table of positions, if any.
        types: The table of types of tokens, if any.
        norm: The norm of what was looked up, if any.
        projection: What makes it as wide as the blocks where it is not.
        tokens: The tokens before the patches of an image.
        distances: The table of biases for distances of tokens, if any.
        biased: Settings of the config that say whether matrices and norms have biases; without them all have.
        file_names: Fields of the `Family` that are other names in a file.
    """

    classes: str
    prefix: str
    positions: str | None = "embeddings.position_embeddings.weight"
    types: str | None = "embeddings.token_type_embeddings.weight"
    norm: str | None = "embeddings.LayerNorm"
    projection: str | None = None
    tokens: tuple[str, ...] = ()
    distances: str | None = None
    biased: tuple[str, ...] = ()
    file_names: Mapping[str, str] = field(default_factory=dict)

    def family(self, kind: str) -> Family:
        """The family, with the names its parts have in a file."""
        return replace(family_of(kind), **dict(self.file_names))  # type: ignore[arg-type]


_BERT = Architecture("Bert", "bert.")
_VIT = Architecture(
    "ViT",
    "vit.",
    positions="embeddings.position_embeddings",
    types=None,
    norm=None,
    tokens=("embeddings.cls_token",),
    biased=("qkv_bias",),
    file_names={
        "blocks": "encoder.layer",
        "query": "attention.attention.query",
        "key": "attention.attention.key",
        "value": "attention.attention.value",
        "output": "attention.output.dense",
        "up": "intermediate.dense",
        "down": "output.dense",
    },
)
#: Families that the engine runs, by `model_type`.
ARCHITECTURES = {
    "bert": _BERT,
    "roberta": replace(_BERT, classes="Roberta", prefix="roberta."),
    "xlm-roberta": replace(_BERT, classes="XLMRoberta", prefix="roberta."),
    "distilbert": Architecture("DistilBert", "distilbert.", types=None),
    "electra": Architecture("Electra", "electra.", projection="embeddings_project"),
    "mpnet": Architecture("MPNet", "mpnet.", types=None, distances="encoder.relative_attention_bias.weight"),
    "modernbert": Architecture(
        "ModernBert",
        "model.",
        positions=None,
        types=None,
        norm="embeddings.norm",
        biased=("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"),
    ),
    "vit": _VIT,
    "deit": replace(
        _VIT, classes="DeiT", prefix="deit.", tokens=("embeddings.cls_token", "embeddings.distillation_token")
    ),
}


@dataclass(frozen=True)
class Layer:
    """A layer behind the blocks: `norm(activation(linear))`.

    Args:
        name: The matrix; with `BASE.` it lies in the encoder.
        activation: One that the kernels have, or the setting of the config that names it.
        norm: What follows, if anything.
    """

    name: str
    activation: str = "none"
    norm: str | None = None


@dataclass(frozen=True)
class Head:
    """What follows the blocks.

    Args:
        pooling: `tokens`, `first` or `mean`, or the setting of the config that says which.
        layers: One after the other.
        outputs: What Transformers calls the outputs; several share the columns.
    """

    pooling: str
    layers: tuple[Layer, ...] = ()
    outputs: tuple[str, ...] = ("logits",)

    @property
    def pools(self) -> bool:
        """Whether there is one row for each sequence; else there is one for each token."""
        return self.pooling != "tokens"

    def named(self, rows: Array) -> dict[str, Array]:
        """The outputs by their names: each has a column of its own, or the only one has all."""
        names = self.outputs
        return {names[0]: rows} if len(names) == 1 else {name: rows[..., at] for at, name in enumerate(names)}

    def of_config(self, config: Mapping[str, Any]) -> Head:
        """This head with what the config says put in."""
        pooling = str(config.get(self.pooling, self.pooling))
        layers = tuple(
            replace(each, activation=str(config.get(each.activation, each.activation))) for each in self.layers
        )
        return replace(self, pooling={"cls": "first"}.get(pooling, pooling), layers=layers)


_CLASSIFIER = (Layer("classifier"),)
_POOLED = Head("first", (Layer("BASE.pooler.dense", "tanh"), *_CLASSIFIER))
_ROBERTA = Head("first", (Layer("classifier.dense", "tanh"), Layer("classifier.out_proj")))
_TAGS = Head("tokens", _CLASSIFIER)
_SPANS = Head("tokens", (Layer("qa_outputs"),), ("start_logits", "end_logits"))
_MODERN = Head("classifier_pooling", (Layer("head.dense", "classifier_activation", "head.norm"), *_CLASSIFIER))
_TEXTS = [kind for kind in ARCHITECTURES if kind not in ("vit", "deit")]
#: Heads by the end of the class in a config, and by family.
HEADS: dict[str, dict[str, Head]] = {
    "ForSequenceClassification": {
        "bert": _POOLED,
        "roberta": _ROBERTA,
        "xlm-roberta": _ROBERTA,
        "mpnet": _ROBERTA,
        "distilbert": Head("first", (Layer("pre_classifier", "relu"), *_CLASSIFIER)),
        "electra": Head("first", (Layer("classifier.dense", "gelu"), Layer("classifier.out_proj"))),
        "modernbert": _MODERN,
    },
    "ForTokenClassification": {
        **dict.fromkeys(_TEXTS, _TAGS),
        "modernbert": replace(_MODERN, pooling="tokens"),
    },
    "ForQuestionAnswering": {
        **dict.fromkeys(_TEXTS, _SPANS),
        "modernbert": replace(_MODERN, pooling="tokens", outputs=("start_logits", "end_logits")),
    },
    "ForImageClassification": dict.fromkeys(("vit", "deit"), Head("first", _CLASSIFIER)),
    "Model": dict.fromkeys(ARCHITECTURES, Head("tokens", outputs=("last_hidden_state",))),
}


def architecture_of(kind: str, name: str) -> Architecture:
    """What the engine knows of a family; `name` is that of the model, for the message."""
    if kind not in ARCHITECTURES:
        raise EngineError(
            f"the engine does not run `{kind}` of `{name}`; it runs {', '.join(ARCHITECTURES)}, so leave `engine` out, "
            "and torch answers, packed weights of any family by the same kernels"
        )
    return ARCHITECTURES[kind]


def head_of(kind: str, config: Mapping[str, Any], name: str) -> Head:
    """What follows the blocks of a model."""
    classes = config.get("architectures")
    saved_class = str(classes[0]) if isinstance(classes, list) and classes else ""
    for ending, heads in HEADS.items():
        if saved_class == f"{ARCHITECTURES[kind].classes}{ending}" and kind in heads:
            return heads[kind].of_config(config)
    raise EngineError(
        f"the engine has no head of `{saved_class}` of `{name}`; leave `engine` out, and torch answers, or take the "
        "encoder without its head"
    )
