"""Encoders of the families that the engine runs, computed from the files of a folder by `arithmetic`.

Names are those of the files, and what a family computes is that of its paper and of Transformers. Of slimformer only
the layouts of codes are used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import transformers as hf
from safetensors.torch import load_file
from torch import arange

from slimformer.formats import layout as layouts
from tests.runtime.exact.arithmetic import ACTIVATIONS, attention, chain, codes_product, norm

LAYOUTS = {each.name: each for each in vars(layouts).values() if isinstance(each, layouts.Layout)}
#: As the configs of Transformers call them.
CONFIG_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class Names:
    """What stands in the files of a family. `base` comes before the names of the encoder where there is a head."""

    base: str
    blocks: str = "encoder.layer"
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    output_norm: str = "output.LayerNorm"
    words: str = "embeddings.word_embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    tokens: tuple[str, ...] = ()  # before the patches of an image
    final_norm: str | None = None
    first_norm: bool = True  # whether the first block has a norm before its attention
    gated: bool = False
    classifier: tuple[tuple[str, str], ...] = (("BASE.pooler.dense", "tanh"), ("classifier", "none"))
    after_padding: bool = False  # positions begin after that of padding


BERT = Names("bert")
DENSE = (("classifier.dense", "tanh"), ("classifier.out_proj", "none"))
ROBERTA = replace(BERT, base="roberta", classifier=DENSE, after_padding=True)
VIT = Names(
    "vit",
    qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    attention_norm="layernorm_before",
    output_norm="layernorm_after",
    tokens=("embeddings.cls_token",),
    final_norm="layernorm",
    classifier=(("classifier", "none"),),
)
NAMES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "electra": replace(BERT, base="electra", classifier=(("classifier.dense", "gelu"), DENSE[1])),
    "mpnet": replace(
        ROBERTA,
        base="mpnet",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        output="attention.attn.o",
        attention_norm="attention.LayerNorm",
    ),
    "distilbert": Names(
        "distilbert",
        blocks="transformer.layer",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        output_norm="output_layer_norm",
        classifier=(("pre_classifier", "relu"), ("classifier", "none")),
    ),
    "modernbert": Names(
        "model",
        blocks="layers",
        qkv=("attn.Wqkv",),
        output="attn.Wo",
        attention_norm="attn_norm",
        up="mlp.Wi",
        down="mlp.Wo",
        output_norm="mlp_norm",
        words="embeddings.tok_embeddings",
        embedding_norm="embeddings.norm",
        final_norm="final_norm",
        first_norm=False,
        gated=True,
        classifier=(("head.dense", "gelu"), ("classifier", "none")),
    ),
    "vit": VIT,
    "deit": replace(VIT, base="deit", tokens=("embeddings.cls_token", "embeddings.distillation_token")),
}


class ExactEncoder:
    """One sequence or image after the other.

    Args:
        folder: With a config and one file of tensors.
        kept: Name of a module → which of its weights a task keeps, [outputs, inputs].
    """

    def __init__(self, folder, kept=()):
        self.config = json.loads((folder / "config.json").read_text())
        self.kept = dict(kept)
        (file,) = folder.glob("*.safetensors")
        # Floats of 16 bits are computed as the floats of 32 that they stand for.
        self.tensors = {
            name: (each.float() if each.is_floating_point() else each).numpy() for name, each in load_file(file).items()
        }
        self.names = NAMES[self.config["model_type"]]
        inside = any(name.startswith(f"{self.names.base}.") for name in self.tensors)
        self.base = f"{self.names.base}." if inside else ""
        self.width = self.number("hidden_size", "dim") // self.number("num_attention_heads", "n_heads")
        self.rounds = "activations" in self.config.get("quantization_config", ())
        self.activation = CONFIG_ACTIVATIONS[self.number("hidden_act", "activation", "hidden_activation")]
        #: What the last forward had before the blocks and after each, and what it multiplied with each matrix.
        self.hidden_states = []
        self.inputs = {}

    def number(self, *names, default=None):
        return next((self.config[name] for name in names if name in self.config), default)

    def packed(self, name):
        """Codes [rows, columns], scales [rows, groups] and columns of a group; None where floats are stored."""
        for layout in LAYOUTS.values():
            units = self.tensors.get(f"{name}.weight.{layout.name}")
            if units is None:
                continue
            size = layout.bytes
            places = [units[:, at::size].astype(np.int64) << 8 * at for at in range(size)]
            numbers = np.sum(places, axis=0)
            digits = np.stack([numbers // layout.base**at % layout.base for at in range(layout.digits)], axis=-1)
            codes = digits.reshape(len(units), -1) * layout.stride + layout.lowest
            scales = self.tensors[f"{name}.weight.{layout.name}_scales"]
            group = self.config["quantization_config"].get("group_size") if scales.shape[1] > 1 else None
            return codes, np.broadcast_to(scales, (len(codes), scales.shape[1])), group
        return None

    def linear(self, name, x, activation="none"):
        self.inputs[name] = x
        packed, bias = self.packed(name), self.tensors.get(f"{name}.bias")
        if packed is None:
            y = self._of_floats(name, x, bias)
        else:
            codes, scales, group = packed
            columns = x.shape[1]
            bias = np.zeros(len(codes), np.float32) if bias is None else bias
            y = codes_product(x, codes[:, :columns], scales, group or columns, bias)
        return ACTIVATIONS[activation](y)

    def _of_floats(self, name, x, bias):
        weight = self.tensors[f"{name}.weight"]
        weight = weight.reshape(len(weight), -1)
        bias = np.zeros(len(weight), np.float32) if bias is None else bias
        y = chain(x, weight) + bias
        if name not in self.kept:
            return y
        # Of each output the inputs are listed that are dropped, or those that are kept where these are fewer.
        kept = self.kept[name]
        keeps = 2 * (~kept).sum(axis=1) > kept.shape[1]
        listed = np.where(keeps[:, None], kept, ~kept)
        masked = np.empty_like(y)
        for output, inputs in enumerate(listed):
            sums = chain(x[:, inputs], weight[output : output + 1, inputs])[:, 0]
            masked[:, output] = bias[output] + sums if keeps[output] else y[:, output] - sums
        return masked

    def norm(self, name, x):
        weight = self.tensors[f"{name}.weight"]
        bias = self.tensors.get(f"{name}.bias", np.zeros_like(weight))
        return norm(x, weight, bias, self.number("layer_norm_eps", "norm_eps", default=1e-12))

    def embedded(self, ids, types):
        base, names = self.base, self.names
        packed = self.packed(f"{base}{names.words}")
        if packed is None:
            words = self.tensors[f"{base}{names.words}.weight"]
        else:
            codes, scales, _ = packed
            width = self.number("embedding_size", "hidden_size", "dim")
            words = codes[:, :width].astype(np.float32) * scales  # a scale for each row
        x = words[ids]
        table = self.tensors.get(f"{base}embeddings.token_type_embeddings.weight")
        if table is not None:
            x = x + table[np.zeros_like(ids) if types is None else types]
        table = self.tensors.get(f"{base}embeddings.position_embeddings.weight")
        if table is not None:
            places = np.arange(len(ids))
            if names.after_padding:  # which takes no place of its own
                padding = self.config["pad_token_id"]
                places = np.where(ids == padding, padding, padding + np.cumsum(ids != padding))
            x = x + table[places]
        x = self.norm(f"{base}{names.embedding_norm}", x)
        projection = f"{base}embeddings_project"
        return self.linear(projection, x) if f"{projection}.weight" in self.tensors else x

    def patches(self, image):
        side, (channels, height, width) = self.config["patch_size"], image.shape
        rows = image.reshape(channels, height // side, side, width // side, side).transpose(1, 3, 0, 2, 4)
        x = self.linear(f"{self.base}embeddings.patch_embeddings.projection", rows.reshape(-1, channels * side * side))
        before = [self.tensors[f"{self.base}{name}"][0] for name in self.names.tokens]
        return np.concatenate([*before, x]) + self.tensors[f"{self.base}embeddings.position_embeddings"][0]

    def turned(self, x, number):
        """Heads [heads, tokens, width] turned by the angles of their positions (arXiv 2104.09864)."""
        width = x.shape[-1]
        theta = self.config["rope_parameters"][self.config["layer_types"][number]]["rope_theta"]
        frequencies = (1 / theta ** (np.arange(0, width, 2) / width)).astype(np.float32)
        # The angle is rounded to 32 bits, as Transformers has it, and its cosine computed in 64.
        angles = (np.arange(x.shape[1], dtype=np.float32)[:, None] * frequencies).astype(np.float64)
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        one, other = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([one * cosines - other * sines, other * cosines + one * sines], axis=-1)

    def attended(self, at, number, x):
        names, tokens = self.names, len(x)
        qkv = np.concatenate([self.linear(f"{at}.{name}", x) for name in names.qkv], axis=1)
        query, key, value = (part.reshape(tokens, -1, self.width).swapaxes(0, 1) for part in np.split(qkv, 3, axis=1))
        distances = np.arange(tokens)[None] - np.arange(tokens)[:, None]
        seen, bias = np.ones_like(distances, bool), None
        if "rope_parameters" in self.config:
            query, key = self.turned(query, number), self.turned(key, number)
            if self.config["layer_types"][number] == "sliding_attention":
                seen = np.abs(distances) <= self.config["local_attention"] // 2
        table = self.tensors.get(f"{self.base}encoder.relative_attention_bias.weight")
        if table is not None:
            buckets = hf.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(
                arange(tokens)[None] - arange(tokens)[:, None]
            )
            bias = table[buckets.numpy()].transpose(2, 0, 1)
        context = attention(query, key, value, rounds=self.rounds, seen=seen, bias=bias)
        return self.linear(f"{at}.{names.output}", context.swapaxes(0, 1).reshape(tokens, -1))

    def fed_forward(self, at, x):
        names = self.names
        if not names.gated:
            return self.linear(f"{at}.{names.down}", self.linear(f"{at}.{names.up}", x, self.activation))
        gate, up = np.split(self.linear(f"{at}.{names.up}", x), 2, axis=1)
        return self.linear(f"{at}.{names.down}", ACTIVATIONS[self.activation](gate) * up)

    def through_blocks(self, x):
        names, self.hidden_states = self.names, [x]
        for number in range(self.number("num_hidden_layers", "n_layers")):
            at = f"{self.base}{names.blocks}.{number}"
            first, second = f"{at}.{names.attention_norm}", f"{at}.{names.output_norm}"
            if names.final_norm is None:  # norms come after the sub-layers
                x = self.norm(first, self.attended(at, number, x) + x)
                x = self.norm(second, self.fed_forward(at, x) + x)
            else:
                x = x + self.attended(at, number, self.norm(first, x) if names.first_norm or number else x)
                x = x + self.fed_forward(at, self.norm(second, x))
            self.hidden_states.append(x)
        return x if names.final_norm is None else self.norm(f"{self.base}{names.final_norm}", x)

    def answer(self, x):
        """[1, outputs] of a head that pools, else [tokens, outputs]."""
        kind = self.config["architectures"][0]
        if kind.endswith("Model"):
            return x
        layers = self.names.classifier
        pooled = kind.endswith(("ForSequenceClassification", "ForImageClassification"))
        if not pooled and not self.names.gated:
            layers = (("qa_outputs" if kind.endswith("Answering") else "classifier", "none"),)
        if pooled and self.config.get("classifier_pooling") == "mean":
            sums = x[:1]
            for row in x[1:]:
                sums = sums + row
            x = sums / np.float32(len(x))
        elif pooled:
            x = x[:1]
        for name, activation in layers:
            x = self.linear(name.replace("BASE.", self.base), x, activation)
            if name == "head.dense":
                x = self.norm("head.norm", x)
        return x

    def run(self, ids, types=None):
        """What the model computes of one sequence of tokens."""
        return self.answer(self.through_blocks(self.embedded(np.array(ids), types)))

    def run_image(self, pixels):
        """The same of one image, [channels, height, width]."""
        return self.answer(self.through_blocks(self.patches(pixels)))
