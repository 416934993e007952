"""Pretrained models by name: aliases, configs, classes, processors. Nothing here knows of artifacts.

Importing this package is quick: torch and transformers are loaded by the functions that need them.
"""

from slimformer.models.config import is_causal, load_config, positions, sees_images
from slimformer.models.loading import load_model, load_skeleton, quiet, stored_class
from slimformer.models.names import ALIASES, resolve
from slimformer.models.processors import load_processor, name_padding

__all__ = [
    "ALIASES",
    "is_causal",
    "load_config",
    "load_model",
    "load_processor",
    "load_skeleton",
    "name_padding",
    "positions",
    "quiet",
    "resolve",
    "sees_images",
    "stored_class",
]
