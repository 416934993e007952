"""The tasks known, one entry each; importing this registers them."""

from slimformer.tasks.presets import corpora, glue, images, spans, texts

__all__ = ["corpora", "glue", "images", "spans", "texts"]
