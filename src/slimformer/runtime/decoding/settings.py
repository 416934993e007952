"""How a folder says that text is to be generated: `generation_config.json`, as anyone may have changed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError, describe
from slimformer.runtime.checkpoint import EngineError, read_object
from slimformer.runtime.decoding.choosing import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GENERATION_CONFIG = "generation_config.json"
#: Settings that change which token comes next and are not known here, with the values that change nothing.
NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "num_beams": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True)
class GenerationSettings:
    """What a folder says of generating.

    Args:
        stop: Tokens that end a text.
        sampling: How tokens are drawn; None for the likeliest each time.
    """

    stop: tuple[int, ...]
    sampling: Sampling | None = None

    @classmethod
    def read(cls, folder: Path, config: Mapping[str, Any]) -> GenerationSettings:
        """Those of a folder; what its `generation_config.json` does not say, `config` does."""
        said = _said(folder, config)
        for name, neutral in NEUTRAL.items():
            value = said.get(name)
            if value is not None and value != neutral:
                raise EngineError(
                    f"`{folder}` asks for `{name}` `{describe(value)}`, which the engine does not know; take it out of "
                    f"{GENERATION_CONFIG}, or leave the engine out"
                )
        if said.get("do_sample") is not True:
            return cls(_stop(folder, said))
        chosen = {name: said[name] for name in ("temperature", "top_k", "top_p") if said.get(name) is not None}
        if chosen.get("top_k") == 0:
            chosen["top_k"] = None
        try:
            return cls(_stop(folder, said), Sampling(**chosen))
        except ConfigError as error:
            raise EngineError(f"the settings for generating of `{folder}` cannot be used: {error}") from error


def read_stop(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text, as a folder says."""
    return _stop(folder, _said(folder, config))


def _said(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    own = read_object(folder, GENERATION_CONFIG, optional=True)
    return dict(config) | {name: value for name, value in own.items() if value is not None}


def _stop(folder: Path, said: Mapping[str, Any]) -> tuple[int, ...]:
    ends = said.get("eos_token_id")
    stop = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
    if any(type(end) is not int or end < 0 for end in stop):
        raise EngineError(f"`{folder}` has `eos_token_id` `{describe(ends)}`, which is no number of a token; mend it")
    return stop
