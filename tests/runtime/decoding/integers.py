"""A ternary decoder in NumPy, slow and obvious: products are sums of whole numbers, all else is in 64 bits."""

from __future__ import annotations

import json

import numpy as np
from safetensors.torch import load_file

from slimformer.formats.layout import TERNARY
from slimformer.formats.packing import unpack


def rounded(x):
    """Whole numbers from -127 to 127 for each row, and what one of them stands for."""
    most = np.abs(x).max(axis=-1, keepdims=True).astype(np.float32)
    # In 32 bits, as the engine does it: in the middle of two steps the last bit decides.
    whole = np.rint(x.astype(np.float32) * (np.float32(127) / most))
    return whole.astype(np.int64), most.astype(np.float64) / 127


class ExactDecoder:
    def __init__(self, folder, architecture):
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(next(folder.glob("*.safetensors")))
        self.architecture = architecture

    def codes(self, name, columns):
        codes = unpack(self.tensors[f"{name}.weight.{TERNARY.name}"], TERNARY, columns).numpy().astype(np.int64)
        return codes, self.tensors[f"{name}.weight.{TERNARY.name}_scales"].numpy().astype(np.float64)

    def linear(self, name, x):
        codes, scales = self.codes(name, x.shape[-1])
        whole, steps = rounded(x)
        bias = self.tensors.get(f"{name}.bias")
        return (whole @ codes.T) * steps * scales[:, 0] + (0 if bias is None else bias.numpy().astype(np.float64))

    def norm(self, name, x):
        weight = self.tensors[f"{name}.weight"].numpy().astype(np.float64) + self.architecture.norm_offset
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"]) * weight

    def turned(self, x):
        width = x.shape[-1]
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = np.arange(len(x))[:, None, None] / theta ** (np.arange(0, width, 2) / width)
        one, other = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate(
            [one * np.cos(angles) - other * np.sin(angles), other * np.cos(angles) + one * np.sin(angles)], axis=-1
        )

    def attention(self, at, x):
        heads, kept = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        width = self.config.get("head_dim") or self.config["hidden_size"] // heads
        query, key, value = (self.linear(f"{at}.{name}_proj", x).reshape(len(x), -1, width) for name in "qkv")
        if f"{at}.q_norm.weight" in self.tensors:
            query, key = self.norm(f"{at}.q_norm", query), self.norm(f"{at}.k_norm", key)
        (query, query_steps), (key, key_steps), (value, value_steps) = map(
            rounded, (self.turned(query), self.turned(key), value)
        )
        answers = np.zeros((len(x), heads, width))
        for head in range(heads):
            of = head // (heads // kept)
            scores = (query[:, head] @ key[:, of].T) * query_steps[:, head] * key_steps[:, of].T / np.sqrt(width)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            # The largest share is 127 steps.
            answers[:, head] = (
                np.rint(shares * 127) / 127 / shares.sum(axis=-1, keepdims=True) @ (value[:, of] * value_steps[:, of])
            )
        return self.linear(f"{at}.o_proj", answers.reshape(len(x), -1))

    def feed_forward(self, at, x):
        gate, up = (self.linear(f"{at}.{name}_proj", x) for name in ("gate", "up"))
        if self.config["hidden_act"] == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return self.linear(f"{at}.down_proj", gate * up)

    def logits(self, ids):
        """[tokens, vocabulary]."""
        codes, scales = self.codes("model.embed_tokens", self.config["hidden_size"])
        x = (codes * scales)[ids] * (np.sqrt(self.config["hidden_size"]) if self.architecture.scales_words else 1)
        for number in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{number}"
            x = x + self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x))
            x = x + self.feed_forward(f"{at}.mlp", self.norm(f"{at}.post_attention_layernorm", x))
        x = self.norm("model.norm", x)
        if "lm_head.weight" in self.tensors:
            return x @ self.tensors["lm_head.weight"].numpy().astype(np.float64).T
        return self.linear("model.embed_tokens", x)
