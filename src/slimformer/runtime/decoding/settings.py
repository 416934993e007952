"""How a folder says that text is to be generated: `generation_config.json`, as anyone may have changed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import describe
from slimformer.files import JsonError, read_json
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.decoding.choosing import Sampling
from slimformer.runtime.encoder import CONFIG_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GENERATION_CONFIG = "generation_config.json"


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
        said = dict(config)
        if (folder / GENERATION_CONFIG).is_file():
            try:
                own = read_json(folder / GENERATION_CONFIG, CONFIG_BYTES)
            except (OSError, JsonError) as error:
                raise EngineError(
                    f"`{folder / GENERATION_CONFIG}` cannot be read ({error}); mend it, or remove it"
                ) from error
            if not isinstance(own, dict):
                raise EngineError(f"`{folder / GENERATION_CONFIG}` is no object; mend it, or remove it")
            said |= {name: value for name, value in own.items() if value is not None}
        ends = said.get("eos_token_id")
        stop = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
        if any(type(end) is not int or end < 0 for end in stop):
            raise EngineError(
                f"`{folder}` has `eos_token_id` `{describe(ends)}`, which is no number of a token; mend it"
            )
        if said.get("do_sample") is not True:
            return cls(stop)
        names = ("temperature", "top_k", "top_p")
        return cls(stop, Sampling(**{name: said[name] for name in names if said.get(name) is not None}))
