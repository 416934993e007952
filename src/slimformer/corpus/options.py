"""Which unlabelled text or images: the settings that every method on a corpus shares."""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from slimformer.config import Config, Positive, PositiveNumber, Temperature, split_items
from slimformer.corpus.source import SequentialSource
from slimformer.errors import DataError
from slimformer.tasks.options import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slimformer.corpus.corpus import Corpus
    from slimformer.corpus.mixing import Mixture
    from slimformer.corpus.tokens.building import Progress


def several(value: Any) -> Any:
    """Accept one name as well as a list of them, and paths as text."""
    if value is None:
        return None
    return tuple(str(name) for name in ([value] if isinstance(value, str | PurePath) else value))


class CorpusOptions(Config):
    """The unlabelled text or images that are learned from."""

    corpus: Annotated[tuple[str, ...] | None, BeforeValidator(several)] = Field(
        None, description="Text, JSONL, CSV, TSV or Parquet files, folders of them, a Hub data set; or images."
    )
    text_column: Column = Field(None, description="Column with the text, in files that have columns.")
    header: bool | None = Field(
        None,
        description="Whether the first line of CSV and TSV files names the columns; else their numbers from 0 do.",
    )
    documents: Literal["lines", "paragraphs"] = Field(
        "lines", description="What a document of a text file is: a line, or what stands between blank lines."
    )

    def open_texts(self) -> Corpus:
        """The corpus as text."""
        from slimformer.corpus.opening import open_corpus

        assert self.corpus is not None
        header = self.header is not False
        return open_corpus(self.corpus, text_column=self.text_column, documents=self.documents, header=header)


#: What is given instead of a folder to keep no tokens.
OFF = "off"
#: Bytes of text from which tokens are kept unless told otherwise; less is tokenised in seconds.
KEPT = 2**26


_NOTHING_KEPT: ContextVar[bool] = ContextVar("nothing_kept", default=False)


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """No tokens are kept inside the `with` block, whatever the settings say."""
    token = _NOTHING_KEPT.set(True)
    try:
        yield
    finally:
        _NOTHING_KEPT.reset(token)


def default_cache() -> str:
    """Where tokens are kept unless told otherwise: with what other programs keep for later."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "slimformer" / "tokens")


class TokenOptions(CorpusOptions):
    """Where the tokens of a corpus are kept, and who makes them."""

    token_cache: str | None = Field(
        None,
        description="Folder in which the tokens of the corpus are kept for later passes and runs, or `off`; by default "
        "`~/.cache/slimformer/tokens` for compressed files, Hub data sets and from 64 MiB of text on.",
    )
    workers: Positive | None = Field(
        None,
        description="Processes that make tokens; by default as many as there are cores where tokens are kept, else "
        "none beside the one that trains. They change no example.",
    )
    corpus_weights: Annotated[tuple[PositiveNumber, ...] | None, BeforeValidator(split_items)] = Field(
        None,
        description="How much of what is learned comes from each path of `--corpus`, such as `3,1`; by default as much "
        "as it holds.",
    )
    corpus_temperature: Temperature | None = Field(
        None,
        description="The same by size: bytes to the power of 1 / temperature, so that small corpora come more often "
        "above 1 (XLM-R's languages: 3.33).",
    )

    @model_validator(mode="after")
    def _a_weight_for_each(self) -> Self:
        count = len(self.corpus or ())
        for name in MIXTURE_SETTINGS:
            if getattr(self, name) is not None and count < 2:
                raise ValueError(
                    f"`{name}` divides several paths of `corpus`, and there is {count or 'none'}; leave it out"
                )
        if self.corpus_weights is None:
            return self
        if self.corpus_temperature is not None:
            raise ValueError("`corpus_weights` and `corpus_temperature` are two ways to divide; leave one of them out")
        if len(self.corpus_weights) != count:
            raise ValueError(
                f"`corpus_weights` is {len(self.corpus_weights)} numbers, and `corpus` {count} paths; give one for each"
            )
        return self

    def open_texts(self) -> Corpus:
        """The corpus as text, divided as told; one that needs its tokens kept is refused where none are."""
        mixed = any(getattr(self, name) is not None for name in MIXTURE_SETTINGS)
        corpus = self._open_mixture() if mixed else super().open_texts()
        if self.token_cache == OFF:
            corpus.check_seekable()
        return corpus

    def _open_mixture(self) -> Mixture:
        from slimformer.corpus.opening import open_mixture

        assert self.corpus is not None
        return open_mixture(
            self.corpus,
            self.corpus_weights,
            self.corpus_temperature or 1.0,
            text_column=self.text_column,
            documents=self.documents,
            header=self.header is not False,
        )

    def token_settings(self, corpus: Corpus, progress: Progress | None = None) -> dict[str, Any]:
        """What `Corpus.stream` needs to know of it.

        Args:
            corpus: The corpus.
            progress: Told how far a cache is.
        """
        forwards = next((source for source in corpus.sources if isinstance(source, SequentialSource)), None)
        place = self.token_cache or (default_cache() if forwards is not None or corpus.size >= KEPT else OFF)
        if _NOTHING_KEPT.get() and place != OFF:
            if forwards is not None:
                raise DataError(
                    f"`{forwards.name}` {forwards.reason} and read by its tokens, which `--dry-run` does not keep; try "
                    f"it on some of the text in a plain file, or {forwards.instead}"
                )
            place = OFF
        return {"cache": None if place == OFF else place, "workers": self.workers, "progress": progress}

    def idle_without_corpus(self, unused: bool, needed: str) -> dict[str, tuple[bool, str]]:
        """Settings that change nothing where no text is made into tokens, and what they need."""
        return dict.fromkeys((*TOKEN_SETTINGS, *MIXTURE_SETTINGS), (unused, needed))


#: They change no example, and a run may go on with others.
TOKEN_SETTINGS = frozenset({"token_cache", "workers"})
#: What divides a corpus of several; images are not mixed.
MIXTURE_SETTINGS = ("corpus_weights", "corpus_temperature")


class StreamOptions(TokenOptions):
    """How a corpus is cut into examples and shuffled."""

    max_length: Positive | None = Field(
        None, description="Tokens of an example; by default 512, or as many as the models take."
    )
    buffer: Positive = Field(16, description="Mebibytes of text that are shuffled together.")
