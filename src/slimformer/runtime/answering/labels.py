"""Labels with their scores, as pipelines of Transformers give them for texts and for images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ConfigError, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slimformer.runtime.onnx import Array


def softmax(logits: Array) -> Array:
    """Shares along the last axis."""
    shares: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


def _sigmoid(logits: Array) -> Array:
    with np.errstate(over="ignore"):
        shares: Array = 1 / (1 + np.exp(-logits))
    return shares


#: What a pipeline may be told to do with logits.
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "softmax": softmax,
    "none": lambda logits: logits,
}


def scores(logits: Array, config: Mapping[str, Any], function: str | None = None, *, regress: bool = True) -> Array:
    """Probabilities as a pipeline gives them, [items, labels].

    Args:
        logits: [items, labels].
        config: That of the model.
        function: A name of `FUNCTIONS`; what the config tells of the problem when not given.
        regress: Whether a config may tell that logits are the answers themselves.
    """
    if function is not None:
        if not isinstance(function, str) or function.lower() not in FUNCTIONS:
            raise ConfigError(f"`function_to_apply` is `{describe(function)}`; give one of: {', '.join(FUNCTIONS)}")
        return FUNCTIONS[function.lower()](logits)
    problem = config.get("problem_type")
    if regress and problem == "regression":
        return logits
    return (_sigmoid if problem == "multi_label_classification" or logits.shape[1] == 1 else softmax)(logits)


def names(config: Mapping[str, Any], count: int) -> list[str]:
    """The labels of a config."""
    named = config.get("id2label")
    known = named if isinstance(named, dict) else {}
    return [str(known.get(str(number), f"LABEL_{number}")) for number in range(count)]


def check_top_k(top_k: Any) -> None:
    """Refuse what is no number of labels."""
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ConfigError(f"`top_k` is `{describe(top_k)}`; give 1 or more, or None for all")


def best(rows: Array, labels: list[str], top_k: int | None) -> list[list[dict[str, Any]]]:
    """So many labels of each row with their scores, the best first."""
    return [
        [{"label": labels[each], "score": float(row[each])} for each in np.argsort(-row, kind="stable")[:top_k]]
        for row in rows
    ]
