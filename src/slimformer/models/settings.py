"""What a config.json may say, checked before Transformers reads it, so that a message names the setting and its value.

A config is text that anyone can change. Sizes below 1, types of numbers that no weight has and labels that are no table
would fail deep inside a library, or not at all and answer something else. The same goes for the device and the type of
numbers that a caller asks for.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from slimformer.errors import CheckpointError, ConfigError, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from transformers import PretrainedConfig

#: Parts of one kind, such as blocks, that a model may have; each takes time to build, even without weights.
MAX_PARTS = 2048
_PARTS = re.compile(r"(layers?|blocks?|groups?|group_num|experts|stages?|depth)$")
#: Outputs that a head may have; the names of all of them are made when a config is read.
MAX_LABELS = 1 << 20
#: Sizes and counts that are at least 1 in every family. Others have numbers below that stand for "none".
SIZES = frozenset(
    {
        *("hidden_size", "dim", "d_model", "n_embd", "embedding_size", "vocab_size"),
        *("intermediate_size", "hidden_dim", "d_ff", "n_inner"),
        *("num_attention_heads", "num_key_value_heads", "num_heads", "n_heads", "n_head", "head_dim", "d_kv"),
        *("max_position_embeddings", "n_positions", "image_size", "patch_size", "num_channels", "num_labels"),
    }
)
#: Counts that may be 0 and not less: there is no model of -1 blocks.
COUNTS = frozenset({"num_hidden_layers", "num_layers", "n_layers", "n_layer", "type_vocab_size"})
#: Types that weights may have in a checkpoint.
FLOATS = ("float32", "float16", "bfloat16", "float64")
#: What a user may have weights stored as.
Store = Literal["float32", "half", "bfloat16"]
#: The same → the type of the numbers in the file.
STORES: dict[Store, str] = {"float32": "float32", "half": "float16", "bfloat16": "bfloat16"}


def check_settings(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config, as read from JSON, with a value that no model has; `name` is what the user calls the model."""
    check_counts(config, name)
    for key, value in config.items():
        reason = _refused(key, value)
        if reason is not None:
            raise CheckpointError(
                f"config.json of `{name}` has `{key}` `{describe(value)}`, {reason}; mend it, or copy the checkpoint "
                "again"
            )


def check_counts(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config whose counts no model has; building them would take hours or gigabytes."""
    for key, value in config.items():
        if isinstance(value, dict):
            check_counts(value, name)
        limit = MAX_LABELS if key in ("num_labels", "_num_labels") else MAX_PARTS if _PARTS.search(key) else None
        if limit is not None and isinstance(value, int | float) and value > limit:
            raise CheckpointError(
                f"config.json of `{name}` asks for `{key}` {value:,}, and at most {limit:,} are built; "
                "copy the checkpoint again"
            )


def check_labels(config: PretrainedConfig, name: str) -> None:
    """Refuse labels that do not tell which output is which: two alike, or one for an output there is not."""
    labels = config.id2label or {}
    if sorted(labels) != list(range(len(labels))):
        raise CheckpointError(
            f"`id2label` in config.json of `{name}` names the outputs `{describe(sorted(labels))}`, which are counted "
            "from 0 without a gap; mend it"
        )
    label, times = max(Counter(map(str, labels.values())).items(), key=lambda item: item[1], default=("", 0))
    if times > 1:
        raise CheckpointError(
            f"`id2label` in config.json of `{name}` calls two outputs `{label}`, so that an answer would not tell "
            "which; give each a label of its own"
        )


def _refused(key: str, value: Any) -> str | None:
    """Why no model has this value; None where one may."""
    if isinstance(value, float) and not math.isfinite(value):
        return "which is no finite number"
    least = 1 if key in SIZES else 0 if key in COUNTS else None
    sides = value if isinstance(value, list) and key in ("image_size", "patch_size") else [value]
    if least is not None and any(isinstance(side, int | float) and side < least for side in sides):
        return f"and {least} is the least"
    check = _CHECKS.get(key)
    return None if check is None or value is None else check(value)


def _type(value: Any) -> str | None:
    known = isinstance(value, str) and value.removeprefix("torch.") in FLOATS
    return None if known else f"and weights are of one of the types {', '.join(FLOATS)}"


def _labels(value: Any) -> str | None:
    numbered = isinstance(value, dict) and all(re.fullmatch(r"\d{1,9}", str(number)) for number in value)
    return None if numbered else "which is no table from the number of an output to its label"


def _name(value: Any) -> str | None:
    return None if isinstance(value, str) else "which is no name"


def _count(value: Any) -> str | None:
    return None if isinstance(value, int) else "which is no whole number"


def _positive(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number and value > 0 else "which is no number above 0"


def _rotation(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "which is no table of settings"
    theta = value.get("rope_theta")
    return None if theta is None else _positive(theta)


def _code(value: Any) -> str | None:
    return None if isinstance(value, dict) else "which is no table from the name of a class to its code"


def _quantizer(value: Any) -> str | None:
    """Without a quantizer that Transformers knows, codes would be taken for weights, or weights for codes."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = value.get("quant_method") if isinstance(value, dict) else None
    known = isinstance(method, str) and method in AUTO_QUANTIZATION_CONFIG_MAPPING
    # Some name their method by a flag of their own instead.
    by_flag = isinstance(value, dict) and any(value.get(flag) for flag in ("load_in_8bit", "load_in_4bit"))
    return None if known or by_flag else "whose `quant_method` is none that Transformers knows"


#: Setting → why a value that is not null cannot be one.
_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "dtype": _type,
    "model_type": _name,
    "id2label": _labels,
    "num_labels": _count,
    "auto_map": _code,
    "rope_theta": _positive,
    "rope_parameters": _rotation,
    "quantization_config": _quantizer,
}


def as_device(device: str | torch.device | None) -> torch.device:
    """A device that is there and computes, by default the CPU."""
    import torch

    try:
        place = torch.device("cpu" if device is None else device)
        torch.empty(0, device=place)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # PyTorch built without a device asserts, and has no class of its own for one that is not there.
        raise ConfigError(
            f"`--device` is `{describe(device)}`, which is not available here; leave it out for the CPU"
        ) from error
    if place.type == "meta":
        raise ConfigError("`--device` is `meta`, where nothing is computed; leave it out for the CPU")
    return place


def as_dtype(dtype: Any) -> torch.dtype | None:
    """A type that weights may have in memory; None for that of the file."""
    import torch

    if dtype is None or (isinstance(dtype, str) and dtype in ("auto", "stored")):
        return None
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, str | torch.dtype) else ""
    if name not in FLOATS:
        raise ConfigError(f"`dtype` is `{describe(dtype)}`, and weights are of one of the types {', '.join(FLOATS)}")
    return getattr(torch, name)  # type: ignore[no-any-return]
