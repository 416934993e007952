"""Which unlabelled text or images: the settings that every method on a corpus shares."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from slimformer.config import Config, Positive
from slimformer.tasks.options import Column

if TYPE_CHECKING:
    from slimformer.corpus.corpus import Corpus


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


class StreamOptions(CorpusOptions):
    """How a corpus is cut into examples and shuffled."""

    max_length: Positive | None = Field(
        None, description="Tokens of an example; by default 512, or as many as the models take."
    )
    buffer: Positive = Field(16, description="Mebibytes of text that are shuffled together.")
