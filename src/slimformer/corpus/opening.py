"""From paths and names to the sources of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from slimformer.corpus.compressed.reading import CompressedLines, CompressedRecords
from slimformer.corpus.compressed.unpacking import ending_of, is_compressed
from slimformer.corpus.corpus import BUFFER, Corpus
from slimformer.corpus.delimited import QuotedRecords, open_csv, open_tsv
from slimformer.corpus.images import open_images
from slimformer.corpus.lines import (
    Documents,
    RangedFile,
    TextLines,
    TextParagraphs,
    holds_json,
    open_json_lines,
    open_text,
)
from slimformer.corpus.mixing import Mixture, shares_by_size, shares_by_weight
from slimformer.corpus.remote.opening import open_hub
from slimformer.corpus.source import Source, SourceFile, opened, refuse, visible_files
from slimformer.corpus.tables import is_stored, open_parquet, open_stored
from slimformer.errors import DataError
from slimformer.files import START, TABLES, as_path, why_no_text
from slimformer.tasks.readers.hub import parse_hub_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slimformer.corpus.stream import Stream

#: How the names of text files end.
TEXT_ENDINGS = (".txt", ".text", ".raw", ".tokens")
#: How the names of files that can be read end.
ENDINGS = (*TEXT_ENDINGS, *TABLES)
#: Archives, which hold several files and are not looked into: ending → the command that unpacks.
ARCHIVES = {".zip": "unzip", ".tar": "tar -xf"}


def find_sources(
    path: str | Path, text_column: str | None, documents: Documents, step: int, header: bool = True
) -> Iterator[Source]:
    """The sources a path, or the name of a Hub data set, stands for."""
    place = as_path(path)
    if place.is_dir():
        if is_stored(place):
            yield open_stored(place, text_column, step)
        else:
            for file in _files_below(place):
                named = SourceFile(file, file.relative_to(place).as_posix())
                yield from _open(named, text_column, documents, step, header)
    elif place.exists():
        yield from _open(SourceFile(place, place.name), text_column, documents, step, header)
    else:
        name = None if isinstance(path, Path) or place.suffix.lower() in ENDINGS else parse_hub_name(path)
        if name is None:
            raise DataError(f"nothing at `{path}`; give a file, a folder or a Hub name such as `owner/name:config`")
        yield open_hub(name, text_column, step)


def _files_below(folder: Path) -> list[Path]:
    there = visible_files(folder)
    # A text in an archive is refused rather than passed over: it is likely the very one that was meant.
    readable = [file for file in there if ending_of(file) in ENDINGS or _is_archived_text(file)]
    if not readable:
        kinds = ", ".join(f"`{kind}`" for kind in sorted({file.suffix.lower() or file.name for file in there})[:12])
        raise DataError(
            f"`{folder}` holds no file that can be read; found: {kinds or 'nothing'}; "
            f"give files that end in one of: {', '.join(ENDINGS)}"
        )
    return readable


def _open(file: SourceFile, text_column: str | None, documents: Documents, step: int, header: bool) -> Iterator[Source]:
    """The source of a file; none for an empty one."""
    path, kind = file.path, ending_of(file.path)
    if kind in ARCHIVES:
        raise DataError(
            f"`{path}` is an archive, which is not looked into; unpack it first: {ARCHIVES[kind]} {path.name}"
        )
    if kind not in ENDINGS:
        raise DataError(
            f"`{path}` ends in `{kind}`, which no reader knows; give a file that ends in one of: {', '.join(ENDINGS)}"
        )
    if kind == ".parquet" and is_compressed(path):
        raise DataError(
            f"`{path}` is Parquet, which is compressed already, within another compression; unpack it, or write it "
            'with `compression="zstd"`'
        )
    with opened(path) as stream:  # a pipe or a device has no size, as an empty file has none
        if not stream.read(1):
            return
    if kind == ".parquet":
        yield open_parquet(file, text_column, step)
        return
    _check_text(path)
    reader = _reader(file, kind, text_column, documents, step, header)
    if not is_compressed(path):
        yield reader
    else:
        yield (CompressedRecords if isinstance(reader, QuotedRecords) else CompressedLines)(reader, step)


def _reader(
    file: SourceFile, kind: str, text_column: str | None, documents: Documents, step: int, header: bool
) -> RangedFile | QuotedRecords:
    """What reads the text of a file."""
    if kind == ".csv":
        return open_csv(file, text_column, step, header)
    if kind == ".tsv":
        return open_tsv(file, text_column, step, header)
    if kind not in TEXT_ENDINGS or holds_json(file.path):
        return open_json_lines(file, text_column, step)
    return open_text(file, documents, step)


def _check_text(path: Path) -> None:
    with opened(path) as stream:
        reason = why_no_text(stream.read(START))
    if reason is not None:
        raise DataError(f"`{path}` {reason}")


def _is_archived_text(file: Path) -> bool:
    return file.suffix.lower() in ARCHIVES and file.with_suffix("").suffix.lower() in ENDINGS


#: Bytes of a segment: what is read at once and never cut by the shuffling.
SEGMENT = 2**20


def open_corpus(
    paths: str | Path | Sequence[str | Path],
    *,
    text_column: str | None = None,
    documents: Documents = "lines",
    header: bool = True,
    segment: int = SEGMENT,
) -> Corpus:
    """Open text of any size and check the beginning of every file.

    Args:
        paths: Text, JSON Lines, CSV, TSV (all of these also compressed) or Parquet files, folders of them, folders
            that `datasets` saved, or names of Hub data sets; one or several.
        text_column: The column of the text in files that have columns; unless given `text`, or the only one that
            can be meant.
        documents: What a document of a text file is: each of its `lines`, or `paragraphs` parted by blank lines.
        header: Whether the first line of CSV and TSV files names the columns; else their numbers from 0 do.
        segment: Bytes of text that are read at once and stay together when shuffling.
    """
    members = _open_members(paths, text_column, documents, header, segment)
    if not any(member.holds_text() for member in members):
        raise DataError(
            f"{_named(member.path for member in members)} holds no text; give files with at least one document"
        )
    return Corpus([source for member in members for source in member.corpus.sources])


def open_mixture(
    paths: Sequence[str | Path],
    weights: Sequence[float] | None = None,
    temperature: float = 1.0,
    *,
    text_column: str | None = None,
    documents: Documents = "lines",
    header: bool = True,
) -> Mixture:
    """Open several corpora, each of which gives its share of the examples.

    Args:
        paths: As in `open_corpus`, different ones; each is a corpus.
        weights: What each gives; None for what its size says.
        temperature: Without weights, the power of their bytes is 1 / temperature.
        text_column: As in `open_corpus`.
        documents: As in `open_corpus`.
        header: As in `open_corpus`.
    """
    members = _open_members(paths, text_column, documents, header, SEGMENT)
    for member in members:
        if not member.holds_text():
            raise DataError(f"`{member.path}` holds no text to give its share of; leave it out")
    corpora = [member.corpus for member in members]
    if weights is None:
        return Mixture(corpora, shares_by_size(corpora, temperature))
    if len(weights) != len(corpora):
        raise DataError(f"there are {len(weights)} weights for {len(corpora)} paths; give one for each")
    return Mixture(corpora, shares_by_weight(weights))


class _Member(NamedTuple):
    """What lies at one path, and whether the beginnings of its files hold text."""

    path: str | Path
    corpus: Corpus
    begins: bool

    def holds_text(self) -> bool:
        """Whether there is any; what begins blank is looked through."""
        return self.begins or next(self.corpus.documents(), None) is not None


def _open_members(
    paths: str | Path | Sequence[str | Path],
    text_column: str | None,
    documents: Documents,
    header: bool,
    segment: int,
) -> list[_Member]:
    """What lies at each path, blank or not; the beginning of every file is checked."""
    if documents not in get_args(Documents):
        raise DataError(f"documents is `{documents}`; give one of: {', '.join(get_args(Documents))}")
    if segment < 4:
        raise DataError(f"segment is `{segment}` bytes, less than a character may need; give at least 4")
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise DataError("no path was given; give files, folders or Hub names")
    by_path = [list(find_sources(path, text_column, documents, segment, header)) for path in given]
    sources = [source for each in by_path for source in each]
    if text_column is not None and sources and all(map(_is_plain, sources)):
        raise DataError(
            f"text_column is `{text_column}`, but {_named(given)} holds plain text without columns; leave it out"
        )
    return [_member(path, each) for path, each in zip(given, by_path, strict=True)]


def _member(path: str | Path, sources: list[Source]) -> _Member:
    begins = [(source, next(source.scan(refuse), None)) for source in sources]
    counts = [sum(1 for _ in first) for _, first in begins if first is not None]
    return _Member(path, Corpus([source for source, first in begins if first is not None]), any(counts))


def _named(paths: Iterable[str | Path]) -> str:
    several = list(paths)
    return ", ".join(f"`{path}`" for path in several[:3]) + (" …" if len(several) > 3 else "")


def _is_plain(source: Source) -> bool:
    reader = source.inner if isinstance(source, CompressedLines) else source
    return isinstance(reader, TextLines | TextParagraphs)


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
    cache: str | Path | None = None,
    workers: int | None = None,
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
        cache: As in `Corpus.stream`.
        workers: As in `Corpus.stream`.
    """
    from transformers import PreTrainedTokenizerBase

    if isinstance(processor, PreTrainedTokenizerBase):
        corpus = open_corpus(paths, text_column=text_column, documents=documents)
        return corpus.stream(
            processor, length, seed=seed, pack=pack, buffer=buffer, memo=memo, cache=cache, workers=workers
        )
    if text_column is not None:
        raise DataError(f"text_column is `{text_column}`, but the model reads images; leave it out")
    return open_images(paths).stream(processor, length, seed=seed)
