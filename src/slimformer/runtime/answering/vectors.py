"""Vectors of texts, as sentence-transformers makes them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ConfigError, DataError, describe
from slimformer.models.sentence import PROMPTS, SentenceSettings
from slimformer.runtime.checkpoint import EngineError, read_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from slimformer.runtime.answering.texts import TextReader
    from slimformer.runtime.onnx import Array

#: Ways of pooling: from the hidden states of a text, [tokens, width], and how many of them are of the prompt.
POOLING: dict[str, Callable[[Array, int], Array]] = {
    "mean": lambda rows, prompt: rows[prompt:].mean(axis=0),
    "cls": lambda rows, prompt: rows[prompt],
    "max": lambda rows, prompt: rows[prompt:].max(axis=0),
}


class Embedder:
    """Pools the hidden states of texts.

    Args:
        folder: What the user calls the model, for messages.
        reader: Reads texts.
        settings: Of a sentence encoder; what is usual where the folder says nothing.
    """

    def __init__(self, folder: Path, reader: TextReader, settings: SentenceSettings) -> None:
        self.folder = folder
        self.reader = reader
        self.settings = settings
        for way in settings.pooling:
            if way not in POOLING:
                raise EngineError(
                    f"`{folder}` pools by `{way}`; the engine has {', '.join(POOLING)}, so pool the rows of "
                    "`encoder.run` yourself, or open it by sentence-transformers"
                )

    def prompt(self, name: str | None, prompt: str | None) -> str:
        """What stands before texts: a prompt as it is, one by its name, or the usual one."""
        if prompt is not None:
            if not isinstance(prompt, str):
                raise ConfigError(f"`prompt` is `{describe(prompt)}`; give a text")
            return prompt
        if name is None:
            return self.settings.prompt
        if name not in self.settings.prompts:
            known = ", ".join(f"`{each}`" for each in self.settings.prompts) or "none"
            raise ConfigError(f"`prompt_name` is `{describe(name)}`, and `{self.folder}` has {known}; give `prompt`")
        return self.settings.prompts[name]

    def vectors(self, texts: list[str], prompt: str, batches: Iterable[int], batch_size: int) -> Array:
        """A vector for each text, [texts, width]; `batches` are the numbers of the first text of each forward."""
        skipped = 0 if self.settings.include_prompt or not prompt else self._prompt_tokens(prompt)
        vectors = []
        for first in batches:
            read = self.reader.read([f"{prompt}{text}" for text in texts[first : first + batch_size]])
            ends = np.cumsum([len(each.ids) for each in read])[:-1]
            vectors += [self._pool(rows, skipped) for rows in np.split(self.reader.run(read), ends)]
        return np.stack(vectors)

    def _pool(self, rows: Array, prompt: int) -> Array:
        prompt = min(prompt, len(rows) - 1)
        return np.concatenate([POOLING[way](rows, prompt) for way in self.settings.pooling])

    def _prompt_tokens(self, prompt: str) -> int:
        """Tokens of a prompt with what stands before it, without what stands behind."""
        read = self.reader.read([prompt])[0]
        return len(read.ids) - int(read.special_tokens_mask[-1])


def normalized(table: Array) -> Array:
    """Vectors scaled to length 1."""
    scaled: Array = table / np.maximum(np.linalg.norm(table, axis=-1, keepdims=True), 1e-12)
    return scaled


def progress(steps: range, draw: bool | None) -> Iterable[int]:
    """Steps, with a bar that shows how far they are where it is asked for."""
    if not draw:
        return steps
    try:
        bar: Iterable[int] = import_module("tqdm").tqdm(steps, desc="Batches")
    except ImportError as error:
        raise ConfigError(
            "`show_progress_bar` is `True`, and bars are drawn by tqdm, which is not installed; leave it out, or run: "
            "pip install tqdm"
        ) from error
    return bar


#: How alike vectors are, [vectors, others]: by the names that sentence-transformers has.
SIMILARITIES: dict[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda one, other: normalized(one) @ normalized(other).T,
    "dot": lambda one, other: one @ other.T,
    "euclidean": lambda one, other: -np.stack([np.linalg.norm(row - other, axis=1) for row in one]),
    "manhattan": lambda one, other: -np.stack([np.abs(row - other).sum(1) for row in one]),
}


def similarity(folder: Path, one: Any, other: Any) -> Array:
    """How alike vectors are, as the folder says that it is measured."""
    name = read_object(folder, PROMPTS, optional=True).get("similarity_fn_name") or "cosine"
    if not isinstance(name, str) or name not in SIMILARITIES:
        raise EngineError(f"`{folder}` measures by `{describe(name)}`; the engine does by {', '.join(SIMILARITIES)}")
    tables = [np.atleast_2d(np.asarray(each, np.float32)) for each in (one, other)]
    if any(table.ndim != 2 or table.shape[1] != tables[0].shape[1] for table in tables):
        raise DataError(
            f"vectors of shapes {[list(table.shape) for table in tables]} are compared; give such as `encode` makes"
        )
    return SIMILARITIES[name](*tables)
