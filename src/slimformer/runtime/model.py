"""A text encoder with its tokenizer on the native kernels: NumPy and `tokenizers`, neither torch nor Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.counts import check_count
from slimformer.errors import ConfigError, DataError, describe
from slimformer.files import JsonError, as_path, read_json
from slimformer.models.sentence import SentenceSettings
from slimformer.panics import panics_raised
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.encoder import CONFIG_BYTES, NativeEncoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slimformer.runtime.onnx import Array

    #: A text, or two that are read together.
    Text = str | tuple[str, str]

TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"


class NativeModel:
    """A text encoder that is asked with texts. Any number of threads may share it.

    `predict`, which is also what calling it does, answers as `pipeline("text-classification")` of Transformers does;
    `encode` as a `SentenceTransformer` does.

    Args:
        folder: A model that `NativeEncoder` runs, with its `tokenizer.json`.
        threads: Threads of one forward; all that the machine has when not given.
        max_length: Tokens a text is cut to; what the folder says, or as many as the model takes, when not given.

    Example:
        >>> NativeModel("sentiment-ternary").predict("a film to remember")
        [{'label': 'positive', 'score': 0.98}]
    """

    def __init__(self, folder: str | Path, threads: int | None = None, max_length: int | None = None) -> None:
        self.folder = as_path(folder)
        self.encoder = NativeEncoder(folder, threads)
        if self.encoder.reads_images:
            raise EngineError(f"`{folder}` reads images; give them to `NativeEncoder.run_images`")
        self.sentence = SentenceSettings.read(self.folder)
        if self.sentence is not None and self.sentence.prompt and not self.sentence.include_prompt:
            raise EngineError(f"`{folder}` leaves its prompt out of the pooling, which the engine does not do")
        self.tokenizer = read_tokenizer(self.folder)
        special = self.tokenizer.num_special_tokens_to_add(is_pair=True)
        settings = self._tokenizer_settings()
        recorded = settings.get("model_max_length")
        limits = (
            None if max_length is None else check_count("max-length", max_length),
            None if self.sentence is None else self.sentence.max_length,
            recorded if isinstance(recorded, int) and recorded > 0 else None,
        )
        self.max_length = min(limit for limit in (*limits, self.encoder.longest) if limit is not None)
        if self.max_length <= special:
            raise ConfigError(f"`max_length` is {self.max_length}, and {special} tokens stand around texts; give more")
        side = "left" if settings.get("truncation_side") == "left" else "right"
        self.tokenizer.enable_truncation(self.max_length, direction=side)
        self.tokenizer.no_padding()

    def __call__(self, texts: Text | Sequence[Text], top_k: int | None = 1, batch_size: int = 32) -> list[Any]:
        """Answer as `predict` does."""
        return self.predict(texts, top_k, batch_size)

    def predict(self, texts: Text | Sequence[Text], top_k: int | None = 1, batch_size: int = 32) -> list[Any]:
        """Labels of texts with their scores.

        Args:
            texts: One text or several; a tuple of two is read as a pair.
            top_k: How many labels of each text, the best first; None for all.
            batch_size: Texts of one forward; changes speed and memory only.

        Returns:
            With a `top_k` of 1 a label and its score for each text; else a list of them for each, or that of the one
            text.
        """
        if self.encoder.outputs != ("logits",) or not self.encoder.pools:
            raise ConfigError(f"`{self.folder}` has no head that gives a text a label; ask it with `encode`")
        if top_k is not None and (type(top_k) is not int or top_k < 1):
            raise ConfigError(f"`top_k` is `{describe(top_k)}`; give 1 or more, or None for all")
        check_count("batch-size", batch_size)
        asked = _listed(texts, pairs=True)
        batches = [asked[first : first + batch_size] for first in range(0, len(asked), batch_size)]
        scores = self._scores(np.concatenate([self._run(batch)[0] for batch in batches]))
        named = self.encoder.config.get("id2label")
        names = named if isinstance(named, dict) else {}
        labels = [str(names.get(str(number), f"LABEL_{number}")) for number in range(scores.shape[1])]
        answers = []
        for row in scores:
            best = np.argsort(-row, kind="stable")[:top_k]
            answers.append([{"label": labels[each], "score": float(row[each])} for each in best])
        if top_k == 1:
            return [answer[0] for answer in answers]
        return answers[0] if isinstance(texts, str | tuple) else answers

    def encode(self, sentences: str | Sequence[str], batch_size: int = 32, normalize_embeddings: bool = False) -> Array:
        """Vectors of texts.

        Args:
            sentences: One text, which gives one vector, or several.
            batch_size: Texts of one forward; changes speed and memory only.
            normalize_embeddings: Whether vectors are scaled to length 1 even where the folder does not say so.
        """
        if self.encoder.outputs != ("last_hidden_state",):
            raise ConfigError(f"`{self.folder}` has a head and gives no vectors; ask it with `predict`")
        check_count("batch-size", batch_size)
        settings = self.sentence or SentenceSettings()
        texts: list[Text] = [f"{settings.prompt}{text}" for text in _listed(sentences, pairs=False)]
        vectors = [
            self._pool(rows, settings)
            for first in range(0, len(texts), batch_size)
            for rows in self._rows_of_each(texts[first : first + batch_size])
        ]
        table = np.stack(vectors)
        if settings.normalize or normalize_embeddings:
            table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        return table[0] if isinstance(sentences, str) else table

    def _run(self, texts: list[Text]) -> tuple[Array, list[int]]:
        """What the encoder makes of texts, and how many tokens each has."""
        try:
            with panics_raised():
                read = self.tokenizer.encode_batch(texts)
        except (ValueError, TypeError) as error:
            raise DataError(f"the tokenizer of `{self.folder}` fails at one of the texts: {error}; mend it") from error
        types = [each.type_ids for each in read] if self.encoder.reads_types else None
        return self.encoder.run([each.ids for each in read], types), [len(each.ids) for each in read]

    def _rows_of_each(self, texts: list[Text]) -> list[Array]:
        rows, lengths = self._run(texts)
        return np.split(rows, np.cumsum(lengths)[:-1])

    def _pool(self, rows: Array, settings: SentenceSettings) -> Array:
        ways: dict[str, Callable[[], Array]] = {
            "mean": lambda: rows.mean(axis=0),
            "cls": lambda: rows[0],
            "max": lambda: rows.max(axis=0),
        }
        unknown = [way for way in settings.pooling if way not in ways]
        if unknown:
            raise EngineError(f"`{self.folder}` pools by `{unknown[0]}`; the engine has {', '.join(ways)}")
        return np.concatenate([ways[way]() for way in settings.pooling])

    def _scores(self, logits: Array) -> Array:
        """Probabilities as Transformers' pipeline gives them."""
        problem = self.encoder.config.get("problem_type")
        if problem == "regression":
            return logits
        if problem == "multi_label_classification" or logits.shape[1] == 1:
            return 1 / (1 + np.exp(-logits))
        shifted: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
        shifted /= shifted.sum(axis=1, keepdims=True)
        return shifted

    def _tokenizer_settings(self) -> dict[str, Any]:
        try:
            settings = read_json(self.folder / TOKENIZER_SETTINGS, CONFIG_BYTES)
        except (OSError, JsonError):
            return {}
        return settings if isinstance(settings, dict) else {}


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder."""
    from tokenizers import Tokenizer

    try:
        with panics_raised():
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            tokenizer.num_special_tokens_to_add(is_pair=True)
    except Exception as error:  # what the package raises has no class of its own
        raise EngineError(f"`{folder}` has no {TOKENIZER} that can be read ({error}); copy it again") from error
    return tokenizer


def _listed(texts: Any, *, pairs: bool) -> list[Text]:
    """What was given as a list; each is a text, or a pair of them where those are read."""
    listed = [texts] if isinstance(texts, str | tuple) else list(texts) if isinstance(texts, Sequence) else None
    if not listed:
        raise DataError(f"`{describe(texts)}` is no text; give at least one")
    for each in listed:
        two = pairs and isinstance(each, tuple) and len(each) == 2
        if not all(isinstance(part, str) for part in (each if two else (each,))):
            raise DataError(f"`{describe(each)}` is no text; give texts{' or pairs of them' if pairs else ''}")
    return listed
