"""`generate` of an elastic decoder: with `draft="S"` a smaller size writes ahead; without, all is as before.

A cache that a size with other heads or blocks has filled is refused in both cases.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError
from slimformer.sizes.decoding.draft import Draft

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from slimformer.sizes.naming import Sized

#: Arguments of `generate` that choose another way of decoding.
OTHER_WAYS = ("assistant_model", "custom_generate", "prefix_allowed_tokens_fn", "negative_prompt_ids", "stop_strings")


def install(model: nn.Module) -> None:
    """Let this one model, if it generates, take a draft; others of its class are left alone."""
    from transformers import GenerationMixin

    if isinstance(model, GenerationMixin):
        model.__dict__["generate"] = MethodType(generate, model)


def uninstall(model: nn.Module) -> None:
    """Take the draft off again."""
    model.__dict__.pop("generate", None)


def generate(model: Any, *args: Any, draft: Draft | Sized | None = None, **kwargs: Any) -> Any:
    """Transformers' `generate`, with one argument more.

    Args:
        model: An elastic decoder.
        args: As Transformers takes them.
        draft: The size that drafts, or a `Draft`; the size in use verifies, and the output is distributed as without.
            With `return_dict_in_generate`, the output has `statistics`.
        kwargs: As Transformers takes them.

    Example:
        >>> model.generate(**tokenizer("Once upon a time", return_tensors="pt"), draft="S", max_new_tokens=40)
    """
    from slimformer.sizes.elastic import Elastic

    original, elastic = type(model).generate, Elastic.of(model)
    elastic.check_cache(kwargs.get("past_key_values"))
    if draft is None:
        return original(model, *args, **kwargs)
    from slimformer.sizes.decoding.run import Decoding

    drafting = Draft.of(draft)
    elastic.share_cache(drafting.size)
    _refuse(model, args, kwargs)
    decoding = Decoding(drafting, kwargs.get("streamer"))
    return original(model, *args, custom_generate=decoding, **kwargs)


def _refuse(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse what cannot be told from a prepared run any more."""
    if len(args) > 1:
        raise ConfigError("with a draft, `generate` takes its settings by name; write `generation_config=…`")
    settings = kwargs.get("generation_config") or model.generation_config
    for name in OTHER_WAYS:
        if kwargs.get(name, getattr(settings, name, None)) is not None:
            raise ConfigError(f"`{name}` and `draft` are both given, and each decodes its own way; leave one out")
    if model.config.is_encoder_decoder:
        raise ConfigError(f"`{type(model).__name__}` has an encoder, and a draft needs a decoder alone; leave it out")
