"""Sentence encoders: how the outputs of a model become one vector, and the files beside it that say so.

The files are those of sentence-transformers: `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json` and
`config_sentence_transformers.json`. Any folder of a model may have them, whatever its weights look like.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from slimformer.errors import CheckpointError
from slimformer.files import JsonError, as_path, read_json
from slimformer.models.names import resolve
from slimformer.models.weights import CONFIG_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
LENGTHS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"

#: Ways of pooling → the flag of each in `1_Pooling/config.json`, in the order in which several are joined.
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
#: The steps of a sentence encoder, under the names that all versions of sentence-transformers know.
_TYPE = "sentence_transformers.models."


@dataclass(frozen=True)
class SentenceSettings:
    """How a sentence encoder makes one vector of a text.

    Args:
        pooling: Ways of pooling, names of `FLAGS`; the vectors of several are joined.
        normalize: Whether a vector is scaled to length 1.
        prompts: Name → what is put before a text.
        default_prompt: The prompt of a text for which none is asked; None for none.
        include_prompt: Whether tokens of the prompt are pooled too.
        max_length: Tokens a text is cut to; None for as many as the model takes.

    Example:
        >>> settings = SentenceSettings.read(models.resolve("minilm"))
        >>> settings.pooling, settings.normalize
        (('mean',), True)
    """

    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    max_length: int | None = None

    def __post_init__(self) -> None:
        for name in self.pooling:
            if name not in FLAGS:
                raise CheckpointError(f"there is no pooling `{name}`; known: {', '.join(FLAGS)}")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            known = ", ".join(f"`{name}`" for name in self.prompts) or "none"
            raise CheckpointError(f"there is no prompt `{self.default_prompt}`; the sentence encoder has {known}")

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        """Read what a folder says; None where it is no sentence encoder.

        Raises:
            CheckpointError: Where the files are broken, or name a step beyond pooling and scaling to length 1.
        """
        return cls._parse(str(folder), lambda name: _file(as_path(folder) / name))

    @classmethod
    def of(cls, name: str | Path) -> Self | None:
        """Read what is recorded of a model by name: an alias, a folder or a Hub name."""
        source = resolve(name)
        return cls.read(source) if Path(source).is_dir() else cls._parse(source, lambda file: _hub_file(source, file))

    def write(self, folder: str | Path, width: int) -> None:
        """Write the files into a folder.

        Args:
            folder: The folder of a model.
            width: Width of its hidden states.
        """
        steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] * self.normalize)]
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": _TYPE + step}
            for index, (path, step) in enumerate(steps)
        ]
        pooling: dict[str, Any] = {"word_embedding_dimension": width}
        if self.pooling == tuple(name for name in FLAGS if name in self.pooling):
            pooling |= {flag: name in self.pooling for name, flag in FLAGS.items()}
        else:  # only newer versions can tell the order
            pooling = {"embedding_dimension": width, "pooling_mode": list(self.pooling)}
        if not self.include_prompt:
            pooling["include_prompt"] = False
        _write(Path(folder) / MODULES, modules)
        _write(Path(folder) / POOLING, pooling)
        if self.max_length is not None:
            _write(Path(folder) / LENGTHS, {"max_seq_length": self.max_length, "do_lower_case": False})
        if self.prompts:
            _write(Path(folder) / PROMPTS, {"prompts": dict(self.prompts), "default_prompt_name": self.default_prompt})

    @property
    def prompt(self) -> str:
        """What is put before a text for which no prompt is asked."""
        return "" if self.default_prompt is None else self.prompts[self.default_prompt]

    @classmethod
    def _parse(cls, source: str, read: Callable[[str], Any]) -> Self | None:
        modules = read(MODULES)
        if modules is None:
            return None
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            raise CheckpointError(f"{MODULES} of `{source}` is no list of modules; copy the model again")
        steps = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        unknown = [step for step in steps if step not in ("Transformer", "Pooling", "Normalize")]
        if unknown or "Pooling" not in steps:
            what = f"a step `{unknown[0]}`" if unknown else "no pooling"
            raise CheckpointError(
                f"the sentence encoder `{source}` has {what}, which cannot be carried along; remove {MODULES} to take "
                "it for a plain model"
            )
        lengths, prompts = read(LENGTHS), read(PROMPTS)
        lengths, prompts = (each if isinstance(each, dict) else {} for each in (lengths, prompts))
        pooling = read(f"{modules[steps.index('Pooling')].get('path', '')}/config.json")
        if not isinstance(pooling, dict):
            raise CheckpointError(f"the sentence encoder `{source}` lacks {POOLING}; copy the model again")
        return cls(
            _ways(pooling),
            "Normalize" in steps,
            prompts.get("prompts") or {},
            prompts.get("default_prompt_name"),
            bool(pooling.get("include_prompt", True)),
            lengths.get("max_seq_length"),
        )


def pool(hidden: Any, attention_mask: Any, ways: str | Sequence[str] = "mean") -> Any:
    """One vector for each text, in NumPy or in torch, whichever the hidden states are in.

    Args:
        hidden: Hidden states, [batch, length, width].
        attention_mask: 1 for tokens that count, [batch, length]; None where all do.
        ways: A name of `FLAGS`, or several, whose vectors are joined.

    Returns:
        [batch, width · ways].
    """
    ways = (ways,) if isinstance(ways, str) else ways
    if isinstance(hidden, np.ndarray):
        mask = np.ones(hidden.shape[:2], hidden.dtype) if attention_mask is None else attention_mask
        return np.concatenate([_pool_numpy(hidden, np.asarray(mask), way) for way in ways], axis=-1)
    import torch

    return torch.cat([_pool_torch(hidden, attention_mask, way) for way in ways], dim=-1)


def normalize(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Vectors scaled to length 1; one of zeros stays as it is."""
    scaled: np.ndarray[Any, Any] = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return scaled


def _pool_torch(hidden: Any, mask: Any, way: str) -> Any:
    import torch

    if mask is None:
        if way == "mean":
            return hidden.mean(dim=1)
        mask = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
    if way in ("cls", "lasttoken"):
        # Padding may stand on either side.
        place = mask.argmax(dim=1) if way == "cls" else mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), place]
    if way == "max":
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(dim=1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    if way == "weightedmean":
        weights = weights * mask.cumsum(dim=1).unsqueeze(-1).to(hidden.dtype)
    total = weights.sum(dim=1).clamp(min=1)
    return (hidden * weights).sum(dim=1) / (total.sqrt() if way == "mean_sqrt_len_tokens" else total)


def _pool_numpy(hidden: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], way: str) -> Any:
    if way in ("cls", "lasttoken"):
        place = mask.argmax(1) if way == "cls" else mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
        return hidden[np.arange(len(hidden)), place]
    if way == "max":
        return np.where(mask[..., None] == 0, -np.inf, hidden).max(1).astype(hidden.dtype)
    weights = mask[..., None].astype(hidden.dtype)
    if way == "weightedmean":
        weights = weights * mask.cumsum(1)[..., None].astype(hidden.dtype)
    total = np.maximum(weights.sum(1), 1)
    return (hidden * weights).sum(1) / (np.sqrt(total) if way == "mean_sqrt_len_tokens" else total)


def _ways(config: dict[str, Any]) -> tuple[str, ...]:
    """The ways of pooling in a file of any version: one flag for each, or a name or a list of names."""
    named = config.get("pooling_mode")
    if named is not None:
        return (named,) if isinstance(named, str) else tuple(named)
    return tuple(name for name, flag in FLAGS.items() if config.get(flag)) or ("mean",)


def _file(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return read_json(path, CONFIG_BYTES)
    except (OSError, JsonError) as error:
        raise CheckpointError(f"`{path}` is not valid JSON: {error}; copy the model again") from error


def _hub_file(name: str, file: str) -> Any:
    from transformers.utils.hub import cached_file

    folder, _, last = file.rpartition("/")
    path = cached_file(
        name,
        last,
        subfolder=folder,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else _file(Path(path))


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
