"""Compressed text: the documents and segments that the same text has uncompressed, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimformer.corpus import open_corpus
from slimformer.corpus.compressed.reading import cut_stream
from slimformer.corpus.compressed.unpacking import XZ_MEMORY
from slimformer.corpus.lines import LINE_END, ByteRanges
from slimformer.corpus.source import Outlive
from slimformer.errors import DataError

COMPRESSORS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.Codec("zstd").compress(content, asbytes=True),
}
TEXTS = [f"{number} " + "many a word " * (number % 40) + "naïve" for number in range(300)]
FILES = {
    ".txt": "\n".join(TEXTS),
    ".jsonl": "\n".join(f'{{"id": {number}, "text": "{text}"}}' for number, text in enumerate(TEXTS)),
    ".csv": "id,text\n" + "\n".join(f'{number},"{text}\nover ""two"" lines"' for number, text in enumerate(TEXTS)),
    ".tsv": "id\ttext\n" + "\n".join(f"{number}\t{text}" for number, text in enumerate(TEXTS)) + "\n",
}


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("kind", FILES)
def test_documents_and_segments_are_those_of_the_file_uncompressed(write, kind, compression):
    content = FILES[kind].encode()
    plain = open_corpus(write(f"a{kind}", content), segment=500)
    packed = open_corpus(write(f"a{kind}{compression}", COMPRESSORS[compression](content)), segment=500)
    assert packed.sizes.tolist() == plain.sizes.tolist()
    assert list(packed.documents()) == list(plain.documents())
    assert len(list(plain.documents())) == len(TEXTS)
    for segment in (0, 7, len(plain.sizes) - 1):
        assert list(packed.read(segment, Outlive())) == list(plain.read(segment, Outlive()))


def test_paragraphs_and_a_byte_order_mark(write):
    content = b"\xef\xbb\xbfone\ntwo\n\nthree\n \n\nfour"
    path = write("a.txt.gz", gzip.compress(content))
    for segment in (40, 100):
        assert list(open_corpus(path, documents="paragraphs", segment=segment).documents()) == [
            "one two",
            "three",
            "four",
        ]


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(4, 50), st.integers(0, 3))
def test_a_stream_is_cut_where_a_file_is(tmp_path_factory, lengths, step, begin):
    content = b"\n".join(b"x" * length for length in lengths).ljust(begin, b" ")
    path = tmp_path_factory.mktemp("cut") / "a.txt"
    path.write_bytes(content)
    for reach in (step, 64 * step):
        ranges = ByteRanges(path, begin, len(content), step, LINE_END, reach)
        expected = [(size, *ranges.read(number)) for number, size in enumerate(ranges.sizes())]
        pieces = list(cut_stream(io.BytesIO(content), ranges))
        assert [(piece.size, piece.content) for piece in pieces] == [(size, text) for size, _, text in expected]
        assert all(piece.begin == at for piece, (_, at, text) in zip(pieces, expected, strict=True) if text)


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_file_that_was_cut_off_is_refused(write, compression):
    noise = random.Random(0).randbytes(2**18).hex().encode()
    content = COMPRESSORS[compression](b"a text\n" + b"\n".join(noise[at : at + 99] for at in range(0, len(noise), 99)))
    path = write(f"a.txt{compression}", content[: len(content) - 9])
    with pytest.raises(
        DataError, match=rf"`.*a\.txt\{compression}` is not a whole \{compression} file .*; copy it again"
    ):
        open_corpus(path, segment=2**14).check()  # when a compressed block of the beginning is read, or one further on


def test_several_streams_in_one_file(write):
    for compression, compress in COMPRESSORS.items():
        path = write(f"a.txt{compression}", compress(b"one\n") + compress(b"two\n"))
        assert list(open_corpus(path).documents()) == ["one", "two"]


def test_a_window_that_would_fill_the_memory_is_refused(write):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2 * XZ_MEMORY}]
    path = write("a.txt.xz", lzma.compress(b"one\n", lzma.FORMAT_XZ, filters=filters))
    with pytest.raises(DataError, match=r"a.txt.xz` is not a whole .xz file that can be read: Memory usage limit"):
        open_corpus(path)


def test_the_estimate_of_a_compressed_file_is_near(write):
    content = "\n".join(f"{number} many a word" for number in range(400_000)).encode()
    path = write("a.txt.zst", COMPRESSORS[".zst"](content))
    assert 0.5 * len(content) < open_corpus(path).size < 2 * len(content)


def test_a_compressed_file_without_text_is_empty(write):
    folder = write("d/a.txt.gz", gzip.compress(b"")).parent
    write("d/b.txt", "text\n")
    assert list(open_corpus(folder).documents()) == ["text"]
