"""Models as GGUF files, which llama.cpp and what is built on it read.

Importing this package is quick: torch, transformers and the package of the extra `gguf` are loaded by the functions
that need them, and nothing here imports training.
"""

from slimformer.integrations.gguf.exporting import GgufNumbers, GgufResult, to_gguf

__all__ = ["GgufNumbers", "GgufResult", "to_gguf"]
