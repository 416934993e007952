"""Decoding with an elastic model on one cache: a smaller size drafts, the size in use verifies."""

from typing import TYPE_CHECKING

from slimformer.lazy import lazy

if TYPE_CHECKING:
    from slimformer.sizes.decoding.draft import Draft, DraftStatistics, frequent_tokens
    from slimformer.sizes.decoding.generation import install, uninstall

__getattr__ = lazy(
    __name__,
    {"draft": ("Draft", "DraftStatistics", "frequent_tokens"), "generation": ("install", "uninstall")},
)

__all__ = ["Draft", "DraftStatistics", "frequent_tokens", "install", "uninstall"]


def __dir__() -> list[str]:
    return __all__
