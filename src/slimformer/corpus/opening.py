"""The front doors: paths in, a checked corpus or a stream of it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from slimformer.corpus.corpus import BUFFER, Corpus
from slimformer.corpus.faults import refuse
from slimformer.corpus.finding import find_sources
from slimformer.corpus.images import open_images
from slimformer.corpus.lines import Documents, TextLines, TextParagraphs
from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.corpus.view import Stream

#: Bytes of a segment: what is read at once and never cut by the shuffling.
SEGMENT = 2**20


def open_corpus(
    paths: str | Path | Sequence[str | Path],
    *,
    text_column: str | None = None,
    documents: Documents = "lines",
    segment: int = SEGMENT,
) -> Corpus:
    """Open text of any size and check the beginning of every file.

    Args:
        paths: Text, JSON Lines, CSV, TSV or Parquet files, folders of them, folders that `datasets` saved, or names
            of Hub data sets; one or several.
        text_column: The column of the text in files that have columns; unless given `text`, or the only one that
            can be meant.
        documents: What a document of a text file is: each of its `lines`, or `paragraphs` parted by blank lines.
        segment: Bytes of text that are read at once and stay together when shuffling.
    """
    if documents not in get_args(Documents):
        raise DataError(f"documents is `{documents}`; give one of: {', '.join(get_args(Documents))}")
    if segment < 4:
        raise DataError(f"segment is `{segment}` bytes, less than a character may need; give at least 4")
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise DataError("no path was given; give files, folders or Hub names")
    sources = [source for path in given for source in find_sources(path, text_column, documents, segment)]
    named = ", ".join(f"`{path}`" for path in given[:3]) + (" …" if len(given) > 3 else "")
    if text_column is not None and sources and all(isinstance(each, TextLines | TextParagraphs) for each in sources):
        raise DataError(f"text_column is `{text_column}`, but {named} holds plain text without columns; leave it out")
    corpus = Corpus([source for source in sources if source.sizes()])
    # All of them are read, because each file is checked; a corpus whose files all begin blank is looked through.
    begins = [sum(1 for _ in source.read(0, refuse)) for source in corpus.sources]
    if not any(begins) and next(corpus.documents(), None) is None:
        raise DataError(f"{named} holds no text; give files with at least one document")
    return corpus


def open_stream(
    paths: str | Path | Sequence[str | Path],
    processor: Any,
    length: int,
    *,
    seed: int = 0,
    text_column: str | None = None,
    documents: Documents = "lines",
    pack: bool = True,
    buffer: int = BUFFER,
    memo: str | Path | None = None,
) -> Stream:
    """A stream of what a model reads: text if its processor is a tokenizer, else images.

    Args:
        paths: Where the text or the images lie.
        processor: The model's tokenizer or image processor; None for images in [-1, 1].
        length: Tokens of an example; pixels a side for images without a processor.
        seed: What the order depends on.
        text_column: As in `open_corpus`; not for images.
        documents: As in `open_corpus`.
        pack: As in `Corpus.stream`.
        buffer: As in `Corpus.stream`.
        memo: As in `Corpus.stream`.
    """
    from transformers import PreTrainedTokenizerBase

    if isinstance(processor, PreTrainedTokenizerBase):
        corpus = open_corpus(paths, text_column=text_column, documents=documents)
        return corpus.stream(processor, length, seed=seed, pack=pack, buffer=buffer, memo=memo)
    if text_column is not None:
        raise DataError(f"text_column is `{text_column}`, but the model reads images; leave it out")
    return open_images(paths).stream(processor, length, seed=seed)
