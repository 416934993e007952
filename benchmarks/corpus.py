"""Tokens a second by number of processes and kind of file, time to the first batch, and memory, on a generated corpus.

The processes that make tokens have one thread each; memory is that of the process that trains, read in a process of its
own for each case.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
from transformers import AutoTokenizer

from harness import RESULTS, keep, options
from slimformer import models

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import BinaryIO

#: Bytes of text that are written at a time.
CHUNK = 2**20
LENGTH, BATCH = 128, 32
KINDS = (".txt", ".jsonl", ".csv", ".parquet", ".txt.gz", ".txt.xz", ".txt.zst")
#: The kind whose memory and first batch matter most: a corpus as it is downloaded.
MAIN = ".txt.zst"

#: Opens a corpus, has its tokens made unless they are there, and takes a batch; prints seconds, tokens and memory.
RUN = """
import json, resource, sys, time
from pathlib import Path
from transformers import AutoTokenizer
from slimformer import models
from slimformer.corpus import open_corpus

path, cache, workers, length, batch = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
tokenizer = AutoTokenizer.from_pretrained(models.resolve("minilm"))

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith(name)), 0)

before, began = memory("VmRSS"), time.perf_counter()
stream = open_corpus(path).stream(tokenizer, length, cache=cache, workers=workers)
opened = time.perf_counter() - began
rows = stream.collator()([stream[number] for number in range(batch)])
print(json.dumps({
    "seconds to open": opened,
    "seconds to the first batch": time.perf_counter() - began,
    "MiB beyond imports": memory("VmHWM") - before,
    "MiB of the largest process beside": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    "tokens": int(stream.tokens.counts.tokens.sum()),
}))
"""


def documents(size: int, seed: int) -> list[str]:
    """About so many bytes of text, drawn from the words that the tokenizer knows, as unevenly as those of English."""
    draw = random.Random(seed)
    vocabulary = AutoTokenizer.from_pretrained(models.resolve("minilm")).get_vocab()
    words = sorted((word for word in vocabulary if word.isalpha()), key=vocabulary.__getitem__)
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    texts, left = [], size
    while left > 0:
        texts.append(" ".join(draw.choices(words, weights, k=draw.randint(20, 400))))
        left -= len(texts[-1]) + 1
    return texts


def write(folder: Path, kind: str, size: int, seed: int) -> Path:
    """A corpus of so many bytes; what is drawn is repeated with a number, so that compressing does not undo it."""
    path = folder / f"corpus{kind}"
    texts = documents(min(size, 16 * CHUNK), seed)
    if kind == ".parquet":
        _write_parquet(path, texts, size)
        return path
    with path.open("wb") as file, _packer(file, path.suffix) as packer:
        written, number = 0, 0
        if kind == ".csv":
            packer.write(b"id,text\n")
        while written < size:
            line = _line(kind, number, texts[number % len(texts)])
            packer.write(line)
            written, number = written + len(line), number + 1
    return path


def _write_parquet(path: Path, texts: list[str], size: int) -> None:
    from pyarrow import parquet

    schema, written = pyarrow.schema([("text", pyarrow.string())]), 0
    with parquet.ParquetWriter(path, schema) as writer:
        while written < size:
            writer.write_table(pyarrow.table({"text": texts}, schema), row_group_size=10_000)
            written += sum(len(text) for text in texts)


def _line(kind: str, number: int, text: str) -> bytes:
    if kind == ".jsonl":
        return json.dumps({"id": number, "text": text}).encode() + b"\n"
    return (f'{number},"{text}"\n' if kind == ".csv" else f"{number} {text}\n").encode()


def _packer(file: BinaryIO, ending: str) -> BinaryIO:
    if ending == ".zst":
        return pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, "w"), "zstd")
    packers = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
    return packers[ending](file, mode="wb") if ending in packers else file


def measure(path: Path, cache: Path, workers: int) -> dict[str, float]:
    """What a fresh process needs."""
    command = [sys.executable, "-c", RUN, *map(str, (path, cache, workers, LENGTH, BATCH))]
    paths = str(RESULTS.parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def compare(arguments: Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Every kind with one process and with two, then again with the tokens there."""
    result = {}
    for kind in (MAIN,) if arguments.tiny else KINDS:
        size = arguments.size if kind == MAIN else min(arguments.size, arguments.others)
        path = write(folder, kind, size, arguments.seed)
        for workers in (1, 2):
            cache = folder / f"tokens{kind}-{workers}"
            first, again = (measure(path, cache, workers) for _ in range(2))
            result[f"{kind} {workers}"] = {
                "MB of text": size / 1e6,
                "tokens a second": first["tokens"] / first["seconds to open"],
                **first,
                "seconds to the first batch, tokens kept": again["seconds to the first batch"],
                "MiB beyond imports, tokens kept": again["MiB beyond imports"],
            }
        path.unlink()
    return result


def main() -> None:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--size", type=int, default=10**9, help=f"bytes of text of the {MAIN} corpus")
    parser.add_argument("--others", type=int, default=2 * 10**8, help="bytes of text of the others, at most")
    parser.add_argument("--work", type=Path, help="where the corpora are generated; by default a folder for a while")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.size = 2 * CHUNK
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        keep("corpus", arguments, {"cases": compare(arguments, Path(folder))})


if __name__ == "__main__":
    main()
