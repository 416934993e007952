"""Pretrained models by name: aliases, configs, classes, processors. Nothing here knows of artifacts.

Importing this package is quick: torch and transformers are loaded by the functions that need them.
"""

from typing import TYPE_CHECKING

from slimformer.lazy import lazy

if TYPE_CHECKING:
    from slimformer.models.hub import HubName, cached
    from slimformer.models.loading import check_weights, load_model, load_skeleton, new_weights, stored_class
    from slimformer.models.names import (
        ALIASES,
        hub_name,
        is_causal,
        load_config,
        located,
        positions,
        quiet,
        resolve,
        sees_images,
    )
    from slimformer.models.processors import load_processor, name_padding
    from slimformer.models.trust import trusted, trusting

#: Positions with this label count for nothing in losses of Transformers, nor in metrics.
IGNORED = -100

__all__ = [
    "ALIASES",
    "IGNORED",
    "HubName",
    "cached",
    "check_weights",
    "hub_name",
    "is_causal",
    "load_config",
    "load_model",
    "load_processor",
    "load_skeleton",
    "located",
    "name_padding",
    "new_weights",
    "positions",
    "quiet",
    "resolve",
    "sees_images",
    "stored_class",
    "trusted",
    "trusting",
]
__getattr__ = lazy(
    __name__,
    {
        "hub": ("HubName", "cached"),
        "loading": ("check_weights", "load_model", "load_skeleton", "new_weights", "stored_class"),
        "names": (
            "ALIASES",
            "hub_name",
            "is_causal",
            "load_config",
            "located",
            "positions",
            "quiet",
            "resolve",
            "sees_images",
        ),
        "processors": ("load_processor", "name_padding"),
        "trust": ("trusted", "trusting"),
    },
)


def __dir__() -> list[str]:
    return __all__
