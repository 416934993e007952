"""Memory does not grow with the corpus: read in a process of its own, whose peak is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.parameters import slow

MEBIBYTE = 2**20
#: What a run may need beyond what it needs for a small corpus; each corpus below is several times that.
ALLOWED = 24

BEGIN = """
import json, sys
from pathlib import Path
from slimformer.corpus import open_corpus
from slimformer.corpus.source import Outlive

def memory(name):
    # Not `getrusage`, whose peak is inherited from the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))

folder = Path(sys.argv[1])
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's figures of memory")

#: Ending, what is written again and again, and how many mebibytes of it.
WRITERS = {
    "lines": (".txt", "(b'many a word ' * 80 + b'\\n') * 1024", 256),
    "one line": (".txt", "'naïve €uro words '.encode() * 40_000", 128),
    "one line without blanks": (".txt", "'€uro𝄞'.encode() * 100_000", 128),
    "json": (".jsonl", "(json.dumps({'text': 'many a word ' * 80}) + '\\n').encode() * 1024", 128),
    "csv": (".csv", "(b'\"' + b'many, a word ' * 80 + b'\\n\",1\\n') * 1024 if written else b'text,n\\n'", 128),
}


def run(code: str, folder: Path) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


@pytest.mark.parametrize("kind", slow(WRITERS, but=["json"]))
def test_reading_takes_the_same_memory_however_large_the_corpus(tmp_path, kind):
    ending, chunk, size = WRITERS[kind]
    before, most, read = run(
        f"""
path, written = folder / "a{ending}", 0
with path.open("wb") as file:
    while written < {size} * 2**20:
        written += file.write({chunk})
before = memory("VmRSS")
read = sum(len(document.encode()) for document in open_corpus(path).documents())
print(before, memory("VmHWM"), read)
""",
        tmp_path,
    )
    assert read > 0.8 * size * MEBIBYTE
    assert most - before < ALLOWED


@pytest.mark.slow
def test_parquet_with_one_large_row_group(tmp_path):
    run(
        """
import pyarrow as pa, pyarrow.parquet as pq
texts = pa.array([f"{number} " + "many a word " * 80 for number in range(1024)])
table = pa.table({"text": pa.chunked_array([texts] * 160)})
pq.write_table(table, folder / "a.parquet", row_group_size=10**9, use_dictionary=False, compression="none")
""",
        tmp_path,
    )
    before, most, read = run(
        """
import pyarrow.parquet
before = memory("VmRSS")
corpus = open_corpus(folder / "a.parquet")
read = sum(len(text) for number in range(0, len(corpus.sizes), 3) for text in corpus.read(number, Outlive()))
print(before, memory("VmHWM"), read)
""",
        tmp_path,
    )
    assert read > 48 * MEBIBYTE
    assert most - before < 2 * ALLOWED  # the group has 150 MiB


@pytest.mark.slow
def test_a_stream_holds_one_block(tmp_path):
    """Blocks of 1 MiB: what eight of them need is what one needs, and a corpus of 170 MiB costs nothing to open."""
    before, most, size = run(
        """
from tests.corpora import making
path = folder / "a.txt"
with path.open("wb") as file:
    for _ in range(200):
        file.write((" ".join(f"w{number}" for number in range(200)) + "\\n").encode() * 1000)
stream = open_corpus(path).stream(making.words(), 128, buffer=2**20)
stream[0]
before, number = memory("VmRSS"), 0
while len(stream._memo) < 8:
    number += 500
    stream[number]
print(before, memory("VmHWM"), path.stat().st_size)
""",
        tmp_path,
    )
    assert size > 150 * MEBIBYTE
    assert most - before < ALLOWED


@pytest.mark.slow
def test_a_hundred_gigabytes_are_opened_and_read_at_any_place(tmp_path):
    """The file is a hole between a first and a last line, so it takes no room on the disk."""
    before, most, blocks = run(
        """
from tests.corpora import making
from tests.parameters import slow
path = folder / "a.txt"
with path.open("wb") as file:
    file.write(b"w1 begins\\n")
    file.truncate(100 * 2**30)
    file.seek(0, 2)
    file.write(b"\\nw2 ends\\n")
tokenizer = making.words()
before = memory("VmRSS")
corpus = open_corpus(path)
stream = corpus.stream(tokenizer, 128, memo=folder / "memo")
last = len(corpus.sizes) - 1
assert next(corpus.read(0, Outlive())) == "w1 begins"
assert [len(text) for text in corpus.read(last // 2, Outlive())] == [2**20]
assert [text for number in (last - 1, last) for text in corpus.read(number, Outlive())][-1] == "w2 ends"
assert len(stream._order.segments(9)) == 16
print(before, memory("VmHWM"), stream._order.blocks)
""",
        tmp_path,
    )
    assert blocks == 6401
    assert most - before < 2 * ALLOWED
