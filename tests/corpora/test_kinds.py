"""Every kind of file gives the same documents."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.corpus import open_corpus
from slimformer.corpus.source import refuse
from slimformer.errors import DataError

TEXTS = [f"document {number} says «{'ja' * (number % 7)}»" for number in range(200)]
ANY = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40), min_size=1, max_size=12)


def as_csv(texts) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["id", "text"])
    writer.writerows(enumerate(texts))
    return file.getvalue()


def as_json_lines(texts) -> str:
    return "".join(json.dumps({"text": text, "n": number}) + "\n" for number, text in enumerate(texts))


def as_tsv(texts) -> str:
    return "id\ttext\n" + "".join(f"{number}\t{text}\n" for number, text in enumerate(texts))


def segments_of(path, segment, **options) -> list[list[str]]:
    corpus = open_corpus(path, segment=segment, **options)
    return [list(corpus.read(number, refuse)) for number in range(len(corpus.sizes))]


def flat(segments):
    return [document for segment in segments for document in segment]


@pytest.fixture(
    params=["a.txt", "json.txt", "a.jsonl", "a.ndjson", "a.json", "a.csv", "a.tsv", "a.parquet", "saved", "splits"]
)
def path(request, tmp_path):
    place = tmp_path / request.param
    match request.param:
        case "a.txt":
            place.write_text("\n".join(TEXTS))
        case "json.txt" | "a.jsonl" | "a.ndjson" | "a.json":
            place.write_text(as_json_lines(TEXTS))
        case "a.csv":
            place.write_text(as_csv(TEXTS))
        case "a.tsv":
            place.write_text(as_tsv(TEXTS))
        case "a.parquet":
            pq.write_table(pa.table({"text": TEXTS, "n": range(len(TEXTS))}), place, row_group_size=60)
        case "saved":
            Dataset.from_dict({"text": TEXTS, "n": range(len(TEXTS))}).save_to_disk(place)
        case _:
            test = Dataset.from_dict({"text": ["kept out"]})
            DatasetDict(train=Dataset.from_dict({"text": TEXTS}), test=test).save_to_disk(place)
    return place


@pytest.mark.parametrize("segment", [64, 300, 2**20])
def test_every_kind_gives_every_document_once(path, segment):
    segments = segments_of(path, segment)
    assert flat(segments) == TEXTS
    if segment == 64:
        assert len(segments) > 5
        assert max(len(documents) for documents in segments) <= 30


@settings(max_examples=150, deadline=None)
@given(ANY, st.integers(4, 120))
def test_csv_with_quotes_and_line_ends(texts, segment):
    expected = [text for text in texts if text.strip()]
    if not expected:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text(as_csv(texts), newline="")
        assert flat(segments_of(path, segment)) == expected


@settings(max_examples=150, deadline=None)
@given(ANY, st.integers(4, 120))
def test_json_lines_longer_than_a_segment_stay_whole(texts, segment):
    expected = [text for text in texts if text.strip()]
    if not expected:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_text(as_json_lines(texts))
        assert flat(segments_of(path, segment)) == expected


def test_csv_quotes_inside_bare_fields_are_text(write):
    path = write("a.csv", 'text,n\n5" disk,1\n"said ""no""\nand left",2\n\n3" tape,3\n')
    assert flat(segments_of(path, 8)) == ['5" disk', 'said "no"\nand left', '3" tape']


def test_csv_fields_may_be_longer_than_the_csv_module_likes(write):
    before = csv.field_size_limit()
    long = "long, " * 40_000
    assert flat(segments_of(write("a.csv", f'text\n"{long}"\nshort\n'), 100)) == [long, "short"]
    assert csv.field_size_limit() == before


def test_tsv_keeps_quotes_and_blank_lines_are_nothing(write):
    path = write("a.tsv", b'\xef\xbb\xbf\r\nid\ttext\t\r\n1\t"one\t\r\n\r\n2\ttwo"\t\r\n')
    assert flat(segments_of(path, 4)) == ['"one', 'two"']


def test_half_a_character_in_json_is_replaced(write):
    path = write("a.jsonl", r'{"text": "\ud83d alone, \ud83d\ude00 whole, caf\u00e9"}')
    assert flat(segments_of(path, 100)) == ["\ufffd alone, 😀 whole, café"]


def test_missing_texts_are_no_documents(write, tmp_path):
    assert flat(segments_of(write("a.jsonl", '{"text": null}\n\n{"text": " "}\n{"text": "x"}'), 100)) == ["x"]
    pq.write_table(pa.table({"text": pa.array([None, "", "x"], pa.large_string())}), tmp_path / "a.parquet")
    assert flat(segments_of(tmp_path / "a.parquet", 100)) == ["x"]


def test_parquet_with_a_dictionary_and_ranges_inside_a_group(tmp_path):
    texts = [f"text {number} " + "x" * 80 for number in range(500)]
    column = pa.array(texts).dictionary_encode()
    pq.write_table(pa.table({"sentence": column, "label": range(500)}), tmp_path / "a.parquet", use_dictionary=False)
    segments = segments_of(tmp_path / "a.parquet", 500)
    assert flat(segments) == texts
    assert len(segments) > 5


def test_a_row_group_of_many_batches(tmp_path):
    texts = [f"text {number} of a group" for number in range(6000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=False)
    segments = segments_of(tmp_path / "a.parquet", 2000)
    assert flat(segments) == texts
    assert len(segments) > 5


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        (("id", "text", "question"), "text"),
        (("label", "Sentence"), "Sentence"),
        (("idx", "abstract"), "abstract"),
        (("title", "content"), "content"),
    ],
)
def test_the_column_is_guessed_when_there_is_no_doubt(write, columns, chosen):
    path = write("a.jsonl", json.dumps({name: f"in {name}" for name in columns}))
    assert flat(segments_of(path, 100)) == [f"in {chosen}"]


def test_the_column_can_be_told(write):
    path = write("a.csv", "text,body\nno,yes\n")
    assert flat(segments_of(path, 100, text_column="body")) == ["yes"]


def test_a_folder_is_read_in_order_and_hidden_files_are_not(write, tmp_path):
    write("b/2.txt", "second\n")
    write("b/1.jsonl", '{"text": "first"}')
    write("c.tsv", "text\nthird\n")
    write("c-empty.txt", "")
    write("README.md", "nothing for the model")
    write(".hidden.txt", "hidden")
    write("b/.cache/x.txt", "hidden")
    assert flat(segments_of(tmp_path, 100)) == ["first", "second", "third"]
    assert flat(segments_of([tmp_path / "c.tsv", str(tmp_path / "b")], 100)) == ["third", "first", "second"]


@pytest.mark.parametrize(("name", "write_as"), [("a.csv", as_csv), ("a.tsv", as_tsv)])
@pytest.mark.parametrize("segment", [40, 2**20])
def test_without_a_header_columns_go_by_number(write, name, write_as, segment):
    whole = write_as(TEXTS)
    path = write(name, whole[whole.index("\n") + 1 :])
    assert flat(segments_of(path, segment, text_column="1", header=False)) == TEXTS


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_first_line_that_looks_like_data_is_told(write, name):
    between = "," if name == "a.csv" else "\t"
    path = write(name, "".join(f"{number}{between}a text of some more than six words\n" for number in range(3)))
    with pytest.raises(DataError, match="looks like a file without a header"):
        open_corpus(path, text_column="1")
