"""How fast positions turn queries and keys (arXiv 2104.09864), with the rules by which long contexts slow them down."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.runtime.building import plain_frequencies
from slimformer.runtime.checkpoint import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slimformer.runtime.onnx import Array

#: What Llama turns by where a config does not say.
USUAL_THETA = 10_000.0


def frequencies(config: Mapping[str, Any], width: int, name: object) -> Array:
    """How fast each pair of a head of that width turns, as a config tells; `name` is that of the model."""
    rule = _rule(config, name)
    kind = rule.get("rope_type", rule.get("type", "default"))
    if kind not in _RULES or rule.get("partial_rotary_factor", 1.0) != 1.0:
        raise EngineError(
            f"`{name}` turns positions by `{rule}`; the engine turns whole heads by {', '.join(_RULES)}, so leave the "
            "engine out"
        )
    theta = rule.get("rope_theta", config.get("rope_theta", USUAL_THETA))
    numbers = {"rope_theta": theta, **{key: rule.get(key) for key in _NUMBERS.get(kind, ())}}
    for key, value in numbers.items():
        least = 1 if key == "rope_theta" else 0
        if type(value) not in (int, float) or not least < value <= sys.float_info.max:
            raise EngineError(f"config.json of `{name}` has `{key}` `{value}` in `rope_parameters`; copy it again")
    return _RULES[kind](plain_frequencies(float(theta), width), rule)


def _rule(config: Mapping[str, Any], name: object) -> Mapping[str, Any]:
    """The parameters as they are written now, or as configs had them before."""
    rule = config.get("rope_parameters", config.get("rope_scaling")) or {}
    if not isinstance(rule, dict):
        raise EngineError(f"config.json of `{name}` has `rope_parameters` `{rule}`; copy it again")
    return rule


def _as_they_are(plain: Array, rule: Mapping[str, Any]) -> Array:
    return plain


def _linear(plain: Array, rule: Mapping[str, Any]) -> Array:
    """All positions closer together (arXiv 2306.15595)."""
    return np.asarray(plain / np.float32(rule["factor"]), np.float32)


def _llama3(plain: Array, rule: Mapping[str, Any]) -> Array:
    """Slow turns slower, quick ones as before, and those between in between (arXiv 2407.21783, section 3.4.2)."""
    low, high, known = rule["low_freq_factor"], rule["high_freq_factor"], rule["original_max_position_embeddings"]
    lengths = 2 * math.pi / plain
    slow = plain / np.float32(rule["factor"])
    share = (np.float32(known) / lengths - np.float32(low)) / np.float32(high - low) if high != low else slow
    between = (1 - share) * slow + share * plain
    slowed = np.where(lengths > known / low, slow, plain)
    return np.asarray(np.where((lengths >= known / high) & (lengths <= known / low), between, slowed), np.float32)


_RULES: dict[str, Callable[[Array, Mapping[str, Any]], Array]] = {
    "default": _as_they_are,
    "linear": _linear,
    "llama3": _llama3,
}
#: Numbers that a rule reads.
_NUMBERS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
