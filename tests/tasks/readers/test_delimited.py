from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import DataError
from slimformer.tasks.readers.delimited import looks_headerless, read_delimited, table_options

FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def read_csv(path, **options):
    return read_delimited(path, delimiter=",", quoted=True, **options)


def read_tsv(path, **options):
    return read_delimited(path, delimiter="\t", quoted=False, **options)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FIELD.filter(str.strip), FIELD), min_size=1, max_size=8))
def test_what_the_csv_module_writes_is_read_back(records):
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("text", "label"), *records])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_bytes(text.getvalue().encode())
        table = read_csv(path)
    assert [tuple(row.values.values()) for row in table.rows] == records


def test_lines_are_where_records_begin(write):
    table = read_csv(write("a.csv", 'text,label\n"two\nlines",1\n\nnext,0\n'))
    assert [(row.line, row.values["text"]) for row in table.rows] == [(2, "two\nlines"), (5, "next")]
    assert table.columns == ("text", "label")


def test_tsv_keeps_quotes_as_they_are(write):
    table = read_tsv(write("a.tsv", 'text\tlabel\n"open\t1\nclose"\t0\n'))
    assert [row.values["text"] for row in table.rows] == ['"open', 'close"']


def test_files_without_header_get_their_columns(write):
    table = read_csv(write("a.csv", "x,1\n"), columns=("text", "label"))
    assert table.rows[0].values == {"text": "x", "label": "1"}


@pytest.mark.parametrize("read", [read_csv, read_tsv])
def test_columns_without_a_header_have_numbers(write, read):
    path = write("a.csv", "x,1\ny,0\n" if read is read_csv else "x\t1\ny\t0\n")
    table = read(path, header=False)
    assert (table.columns, table.header) == (("0", "1"), False)
    assert [(row.line, row.values) for row in table.rows] == [(1, {"0": "x", "1": "1"}), (2, {"0": "y", "1": "0"})]
    assert read(path).header


def test_a_record_that_differs_from_the_first_is_refused_without_a_header(write):
    with pytest.raises(DataError, match=r"a.tsv` line 2 has 3 fields where 2 are expected \(`0`, `1`\)"):
        read_tsv(write("a.tsv", "x\t1\ny\t0\t1\n"), header=False)


@pytest.mark.parametrize(
    ("first", "headerless"),
    [
        ("text,label", False),
        ("premise of the pair,judgement", False),
        ("a film,good", True),  # a label that comes again
        ("a film,3", True),
        ("a film,-1.5", True),
        (f"{'long ' * 20},x", True),
        ("one two three four five six seven,x", True),
    ],
)
def test_a_first_line_that_looks_like_data(write, first, headerless):
    table = read_csv(write("a.csv", f"{first}\nthis film,good\nthat film,bad\n"))
    assert looks_headerless(table.columns, table.rows) is headerless


def test_quotes_that_a_writer_of_csv_put_into_tsv_are_told(write):
    path = write("a.tsv", 'text\tlabel\n"say ""hi"""\t1\n"a film"\t0\n')
    (note,) = read_tsv(path).notes
    assert note.startswith(f"every field of column `text` of `{path}` stands in double quotes, which are kept")
    table = read_delimited(path, delimiter="\t", quoted=True)
    assert ([row.values["text"] for row in table.rows], table.notes) == (['say "hi"', "a film"], ())
    assert read_tsv(write("b.tsv", 'text\tlabel\n"open\t1\n"a" or "b"\t0\n')).notes == ()
    with pytest.raises(DataError, match=r"line 2 has 3 fields .* or give `--quoting csv` if double quotes enclose"):
        read_tsv(write("c.tsv", 'text\tlabel\n"a\tfilm"\t1\n'))


def test_what_a_reader_is_told():
    assert table_options() == table_options(header=True) == {}
    assert table_options(False, "csv") == {"header": False, "quoted": True}
    with pytest.raises(DataError, match="quoting `all` is not known; give csv or none"):
        table_options(quoting="all")


def test_a_field_may_be_long_and_the_limit_of_the_module_stays(write):
    before = csv.field_size_limit()
    table = read_csv(write("a.csv", f"text,label\n{'x' * 200_000},1\n"))
    assert len(table.rows[0].values["text"]) == 200_000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "text,label\na,1\nb,1,2\n",
            r"a.csv` line 3 has 3 fields where 2 are expected \(`text`, `label`\); it begins `b`: "
            "mend the line; text that holds `,` stands in double quotes$",
        ),
        ("text,label\na,1\nb\n", "a.csv` line 3 has 1 fields .*: mend the line$"),
        ("text,text\na,1\n", "line 1 names column `text` twice"),
        ('text,label\n"a"b,1\n', "line 2 is not valid CSV"),
        ('text,label\nx,1\n"open,1\n', "line 3 is not valid CSV"),
        ("text,label\n", "a.csv` holds no rows"),
    ],
)
def test_broken_files_name_the_line(write, content, message):
    with pytest.raises(DataError, match=message):
        read_csv(write("a.csv", content))


def test_ragged_rows_are_skipped_when_a_preset_says_so(write):
    table = read_tsv(write("a.tsv", "a\tb\n1\t2\n3\n4\t5\n"), skip_ragged=True)
    assert [row.line for row in table.rows] == [2, 4]
