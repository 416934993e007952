"""Data sets of the Hub, which is a server in this process; `datasets` and `huggingface_hub` are the real ones."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from inspect import signature
from typing import TYPE_CHECKING

import huggingface_hub
import numpy as np
import pyarrow as arrow
import pytest
from datasets import DatasetBuilder, config
from pyarrow import parquet

from slimformer.corpus import Corpus, open_corpus
from slimformer.corpus.examples import Encoder
from slimformer.corpus.options import TokenOptions, keeping_nothing
from slimformer.corpus.remote import opening, rows
from slimformer.corpus.remote.rows import HubRows
from slimformer.corpus.source import refuse
from slimformer.corpus.tables import StoredDataset
from slimformer.corpus.tokens import building
from slimformer.corpus.tokens.building import open_tokens
from slimformer.errors import DataError
from slimformer.tasks.readers.hub import HubName, fetch
from tests import hub
from tests.conftest import ROOT
from tests.corpora import making

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = making.words()
FILES, ROWS, SEGMENT = 4, 300, 2000
PARQUET, LINES, PACKED = KINDS = ("parquet", "jsonl", "jsonl.gz")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub.FakeHub]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the libraries wait for minutes
    monkeypatch.setattr(config, "STREAMING_READ_MAX_RETRIES", 2)
    monkeypatch.setattr(building, "SHARD", 12_000)
    with hub.serving(tmp_path / "caches", monkeypatch) as server:
        yield server
    huggingface_hub.HfFileSystem.clear_instance_cache()
    rows._first.cache_clear()
    rows._loaded.cache_clear()


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Texts of different lengths, some of them of several lines and one longer than a segment."""
    chance = random.Random(7)
    texts = [" ".join(f"w{chance.randrange(90)}" for _ in range(chance.randrange(1, 30))) for _ in range(FILES * ROWS)]
    texts[5] = texts[5] + "\n" + texts[6]
    texts[700] = "w7 " * SEGMENT
    return texts


def content(kind: str, texts: list[str | None]) -> bytes:
    """A file with a column of text and two others."""
    numbers = list(range(len(texts)))
    if kind == PARQUET:
        file = io.BytesIO()
        table = arrow.table({"id": numbers, "text": texts, "link": [f"link {each}" for each in numbers]})
        parquet.write_table(table, file, row_group_size=70)
        return file.getvalue()
    lines = [json.dumps({"id": number, "text": text, "link": "x"}) + "\n" for number, text in enumerate(texts)]
    plain = "".join(lines).encode()
    return gzip.compress(plain, mtime=0) if kind == PACKED else plain


def files(kind: str, texts: list[str], folder: str = "data/train") -> dict[str, bytes]:
    parts = [texts[first : first + ROWS] for first in range(0, len(texts), ROWS)]
    return {f"{folder}-{number}.{kind}": content(kind, [*part]) for number, part in enumerate(parts)}


def opened(name: str = "me/texts", **settings: str) -> Corpus:
    return open_corpus(name, segment=SEGMENT, **settings)


def source_of(corpus: Corpus) -> HubRows:
    (source,) = corpus.sources
    assert isinstance(source, HubRows)
    return source


def tokens(corpus: Corpus, place: Path, workers: int = 1) -> tuple[list[int], list[int]]:
    """The ids of all documents, one after the other, and how many each has."""
    stored = open_tokens(corpus, Encoder(WORDS), place, workers)
    read = stored.read(range(len(stored.sizes)), refuse)
    return np.asarray(read.ids).tolist(), np.asarray(read.lengths).tolist()


def local(folder: Path, texts: list[str]) -> Corpus:
    for name, each in files(LINES, texts, "part").items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(each)
    return open_corpus(folder, segment=SEGMENT)


def fetched(server: hub.FakeHub, since: int = 0) -> set[str]:
    """The files of which anything was fetched."""
    gets = [line for line in server.asked[since:] if line.startswith("GET /datasets/") and "train-" in line]
    return {line.rsplit("/", 1)[1] for line in gets}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_the_same_text_in_files(
    server: hub.FakeHub, tmp_path: Path, documents: list[str], kind: str
) -> None:
    server.add("datasets/me/texts", files(kind, documents))
    corpus = opened()
    assert list(corpus.documents()) == documents
    expected = tokens(local(tmp_path / "local", documents), tmp_path / "other")
    assert tokens(corpus, tmp_path / "tokens") == expected
    assert len(list((tmp_path / "tokens").glob("*/0*.safetensors"))) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_text_is_put_on_the_disk(
    server: hub.FakeHub, tmp_path: Path, documents: list[str], kind: str
) -> None:
    marked = [f"{text} marker" for text in documents]
    server.add("datasets/me/texts", {**files(kind, marked), "README.md": b"---\nlicense: mit\n---\n"})
    tokens(opened(), tmp_path / "caches" / "tokens")
    left = [path for path in (tmp_path / "caches").rglob("*") if path.is_file() and path.name != ".lock"]
    assert {"README.md", "000000.safetensors"} <= {path.name for path in left}
    stored = {each for name, each in files(kind, marked).items() if name.startswith("data")}
    assert not [path for path in left if b"marker" in path.read_bytes() or path.read_bytes() in stored]


def test_a_second_opening_reads_the_cache_alone(server: hub.FakeHub, tmp_path: Path, documents: list[str]) -> None:
    server.add("datasets/me/texts", files(PARQUET, documents))
    first = opened().stream(WORDS, 16, cache=tmp_path / "tokens", workers=1)
    assert fetched(server) == {f"train-{number}.parquet" for number in range(FILES)}
    rows._first.cache_clear()
    rows._loaded.cache_clear()
    since = len(server.asked)
    corpus = opened()
    assert fetched(server, since) == {"train-0.parquet"}  # its beginning, which is checked
    since = len(server.asked)
    again = corpus.stream(WORDS, 16, cache=tmp_path / "tokens", workers=1)
    assert making.ids(again, 50) == making.ids(first, 50)
    assert len(server.asked) == since


@pytest.mark.parametrize("kind", KINDS)
def test_reading_goes_on_from_every_piece(server: hub.FakeHub, documents: list[str], kind: str) -> None:
    server.add("datasets/me/texts", files(kind, documents))
    source = source_of(opened())
    pieces = list(source.pieces())
    assert len(pieces) > 30
    assert all(piece.size >= SEGMENT for piece in pieces[:-1])
    assert sum(piece.size for piece in pieces) == sum(len(text.encode()) + 1 for text in documents)
    assert [bool(piece.after) for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    chained = [pieces[0]]
    while chained[-1].after:  # each from the mark of a piece that was itself read from a mark
        chained.append(next(source.pieces_after(chained[-1].after)))
    whole = [(piece.size, piece.begin, piece.content) for piece in pieces]
    assert [(piece.size, piece.begin, piece.content) for piece in chained] == whole
    rest = [piece.content for piece in source.pieces_after(pieces[20].after)]
    assert rest == [piece.content for piece in pieces[21:]]


def test_the_mark_of_another_version_of_the_library_counts_rows(server: hub.FakeHub, documents: list[str]) -> None:
    server.add("datasets/me/texts", files(LINES, documents))
    source = source_of(opened())
    pieces = list(source.pieces())
    mark = json.loads(pieces[9].after)
    mark["datasets"], mark["place"]["state"] = "0.1", {"of another": "form"}
    rest = list(source.pieces_after(json.dumps(mark)))
    assert [piece.content for piece in rest] == [piece.content for piece in pieces[10:]]
    assert [piece.begin for piece in rest] == [piece.begin for piece in pieces[10:]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_breaks_ends_in_a_line_and_what_is_made_is_kept(
    server: hub.FakeHub, tmp_path: Path, documents: list[str], kind: str
) -> None:
    server.add("datasets/me/texts", files(kind, documents))
    place = tmp_path / "tokens"
    server.breaking = ("train-2", 10**6)
    with pytest.raises(DataError, match=r"^the connection to the Hub broke after row [56]\d\d of `me/texts train` and"):
        tokens(opened(), place)
    kept = {path: path.stat().st_mtime_ns for path in place.glob("*/0*.safetensors")}
    assert len(kept) >= 2
    assert not list(place.glob("*/index.safetensors"))
    server.breaking = None
    since = len(server.asked)
    assert tokens(opened(), place) == tokens(local(tmp_path / "local", documents), tmp_path / "other")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert f"train-3.{kind}" in fetched(server, since)


def test_what_has_tokens_is_not_fetched_again(server: hub.FakeHub, tmp_path: Path, documents: list[str]) -> None:
    server.add("datasets/me/texts", files(PARQUET, documents))
    place = tmp_path / "tokens"
    whole = tokens(opened(), place)
    shards = sorted(place.glob("*/*.safetensors"))  # the index is the last
    for path in shards[-2:]:
        path.unlink()
    since = len(server.asked)
    progress: list[int] = []
    corpus = opened()
    open_tokens(corpus, Encoder(WORDS), place, 1, lambda done, total: progress.append(done))
    # The first tells the columns; a batch of rows begins in the third, and its rest in the fourth.
    assert fetched(server, since) == {f"train-{number}.parquet" for number in (0, 2, 3)}
    assert len(progress) == len(shards) - 1
    assert tokens(corpus, place) == whole


def test_a_connection_that_breaks_twice_is_made_again(
    server: hub.FakeHub, tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("datasets/me/texts", files(PACKED, documents))
    corpus = opened()
    server.breaking = ("train-2", 2)
    assert list(corpus.documents()) == documents
    assert server.breaking == ("train-2", 0)


def test_a_server_out_of_order_is_waited_for_in_vain(
    server: hub.FakeHub, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("datasets/me/texts", files(LINES, documents))
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    corpus = opened()
    server.failing = ("train-1", 500)
    with pytest.raises(DataError, match=r"broke after row \d+ of `me/texts train`.*check the network and start again"):
        list(corpus.documents())
    assert [wait for wait in waits if wait in (1, 2, 4, 8)][-1] == rows.WAIT * 2 ** (rows.RETRIES - 1)


def test_a_file_that_cannot_be_looked_up_is_waited_for(server: hub.FakeHub, documents: list[str]) -> None:
    server.add("datasets/me/texts", files(LINES, documents))
    corpus = opened()
    huggingface_hub.HfFileSystem.clear_instance_cache()
    server.failing = ("/tree/|/paths-info/", 503)  # `datasets` takes such a file for one that is not there
    with pytest.raises(DataError, match=r"broke after row \d+ of `me/texts train` and could not be made again"):
        list(corpus.documents())
    server.failing = None
    assert list(corpus.documents()) == documents


def test_a_file_that_is_none_is_no_matter_of_the_network(server: hub.FakeHub, documents: list[str]) -> None:
    server.add("datasets/me/texts", {**files(PARQUET, documents), "data/train-2.parquet": b"PAR1 and nothing else"})
    corpus = opened()
    with pytest.raises(
        DataError, match=r"`me/texts train` cannot be read after row \d+: .*; give another revision"
    ) as e:
        list(corpus.documents())
    assert "\n" not in str(e.value)


KILLED = """
import sys
from slimformer.corpus import open_corpus
from slimformer.corpus.tokens import building
from tests.corpora import making
building.SHARD = 12_000
def progress(done, total):
    print(done, flush=True)
open_corpus("me/texts", segment=2000).stream(making.words(), 16, cache=sys.argv[1], workers=2, progress=progress)
"""


@pytest.mark.slow
def test_after_a_real_kill_it_goes_on(server: hub.FakeHub, tmp_path: Path, documents: list[str]) -> None:
    server.add("datasets/me/texts", files(PACKED, documents))
    place = tmp_path / "tokens"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"},
        **{"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"},
        **{"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "OMP_NUM_THREADS": "1"},
    }
    command = [sys.executable, "-c", KILLED, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.send_signal(signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in place.glob("*/0*.safetensors")}
    assert kept
    assert tokens(opened(), place) == tokens(local(tmp_path / "local", documents), tmp_path / "other")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_processes_make_the_same_tokens(server: hub.FakeHub, tmp_path: Path, documents: list[str]) -> None:
    server.add("datasets/me/texts", files(PARQUET, documents))
    corpus = opened()
    source = source_of(corpus)
    assert pickle.loads(pickle.dumps(source)) == source
    assert tokens(corpus, tmp_path / "two", workers=2) == tokens(corpus, tmp_path / "one")


CARD = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/*.jsonl
  - split: test
    path: held/*.jsonl
- config_name: sw
  data_files: sw/*.jsonl
dataset_info:
- config_name: en
  features:
  - name: id
    dtype: int64
  - name: text
    dtype: string
  - name: link
    dtype: string
  splits:
  - name: train
    num_bytes: 99
    num_examples: 1200
---
"""


def test_parts_and_revisions(server: hub.FakeHub, documents: list[str]) -> None:
    parts = {**files(LINES, documents, "en/train"), **files(LINES, ["w1 w2"], "sw/a"), **files(LINES, ["w3"], "held/a")}
    repo = server.add("datasets/me/texts", {**parts, "README.md": CARD.encode()})
    commit = repo.branches["main"]
    repo.commit("later/on", {**repo.files(), "sw/a-0.jsonl": content(LINES, ["w4"])})
    assert list(opened("me/texts:sw").documents()) == ["w1 w2"]
    assert list(opened("me/texts:sw@later/on").documents()) == ["w4"]
    assert list(opened(f"me/texts:sw@{commit}").documents()) == ["w1 w2"]
    english = opened("me/texts:en")
    assert source_of(english).rows == len(documents)
    assert fetch(HubName("me/texts", "sw", "later/on"))["train"]["text"][:] == ["w4"]  # as `--data` reads it
    with pytest.raises(DataError, match=r"`me/texts:fr` is no .*'fr' not found.*; check the spelling and the network"):
        opened("me/texts:fr")


def test_the_identity_is_what_is_there(server: hub.FakeHub, documents: list[str]) -> None:
    repo = server.add("datasets/me/texts", files(LINES, documents))
    commit = repo.branches["main"]
    corpus = opened()
    assert opened(f"me/texts@{commit}").digest() == opened("me/texts@main").digest() == corpus.digest()
    # A name stands for the commit it was first read at, for as long as the process runs.
    repo.commit("main", files(LINES, documents[: 2 * ROWS]))
    assert opened().digest() == corpus.digest()
    other = opened(f"me/texts@{repo.branches['main']}")
    assert len(list(other.documents())) == 2 * ROWS
    cut, column = open_corpus("me/texts", segment=SEGMENT + 1), opened(text_column="link")
    assert len({each.digest() for each in (corpus, other, cut, column)}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_estimated(server: hub.FakeHub, documents: list[str], kind: str) -> None:
    card = CARD.replace("en/*.jsonl", f"data/*.{kind}").replace("  - split: test\n    path: held/*.jsonl\n", "")
    card = card.replace("- config_name: sw\n  data_files: sw/*.jsonl\n", "")
    server.add("datasets/me/counted", {**files(kind, documents), "README.md": card.encode()})
    server.add("datasets/me/texts", files(kind, documents))
    server.add("datasets/me/short", {f"data/train.{kind}": content(kind, ["w1 w2", "w3"])})
    size = sum(len(text) + 1 for text in documents)
    assert size / 1.5 < opened("me/counted").size < size * 1.5
    assert size / 4 < opened().size < size * 4
    assert opened("me/short").size == 9


def test_missing_and_blank_texts_are_no_documents(server: hub.FakeHub) -> None:
    server.add("datasets/me/texts", {"train.jsonl": content(LINES, ["w1", None, "  ", "w2"])})
    assert list(opened().documents()) == ["w1", "w2"]
    server.add("datasets/me/blank", {"train.parquet": content(PARQUET, ["", " "])})
    with pytest.raises(DataError, match="`me/blank` holds no text"):
        opened("me/blank")
    table = arrow.table({"text": arrow.array(["w1", "w2", "w1"]).dictionary_encode()})
    file = io.BytesIO()
    parquet.write_table(table, file)
    server.add("datasets/me/coded", {"train.parquet": file.getvalue()})
    assert list(opened("me/coded").documents()) == ["w1", "w2", "w1"]


def test_what_the_hub_does_not_have(server: hub.FakeHub, documents: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("datasets/me/texts", files(LINES, documents, "data/train"))
    server.add(
        "datasets/me/held", {"data/test.jsonl": content(LINES, ["w1"]), "data/dev.jsonl": content(LINES, ["w1"])}
    )
    with pytest.raises(
        DataError, match=r"^`me/nothing` is no file or folder here and could not be loaded from the Hub"
    ):
        opened("me/nothing")
    with pytest.raises(DataError, match=r"`me/texts@v9` is no .*: it has no revision `v9`; check the spelling"):
        opened("me/texts@v9")
    with pytest.raises(DataError, match=r"`me/held` has no split `train`, but: .*test"):
        opened("me/held")
    with pytest.raises(
        DataError, match=r"`me/texts train` has no column `body`; it has the columns `id`, `text`, `link`"
    ):
        opened(text_column="body")
    with pytest.raises(DataError, match=r"column `id` of `me/texts train` holds `int64` and no text"):
        opened(text_column="id")
    server.failing = ("/api/datasets/me/gated", 403)
    server.add("datasets/me/gated")
    with pytest.raises(DataError, match=r"access is refused \(403\); ask its owner") as refused:
        opened("me/gated")
    assert hub.TOKEN not in str(refused.value)
    server.failing = ("/datasets/me/texts/tree/", 503)
    huggingface_hub.HfFileSystem.clear_instance_cache()
    with pytest.raises(
        DataError, match=r"loaded from the Hub: the Hub answered 503; try again later, or give a folder"
    ):
        opened()


def test_offline_the_copy_of_the_library_is_read(
    server: hub.FakeHub, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("datasets/me/texts", files(LINES, documents))
    assert fetch(HubName("me/texts"))["train"].num_rows == len(documents)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    asked = len(server.asked)
    corpus = opened()
    assert isinstance(corpus.sources[0], StoredDataset)
    assert list(corpus.documents()) == documents
    assert len(server.asked) == asked
    with pytest.raises(DataError, match="`me/another` is no file or folder here and could not be loaded from the Hub"):
        opened("me/another")


def test_a_hub_out_of_reach_leaves_the_copy_of_the_library(server: hub.FakeHub, documents: list[str]) -> None:
    server.add("datasets/me/texts", files(LINES, documents))
    fetch(HubName("me/texts"))
    server.shutdown()
    server.server_close()
    huggingface_hub.close_session()  # connections that are open outlive the server
    corpus = opened()
    assert isinstance(corpus.sources[0], StoredDataset)
    assert list(corpus.documents()) == documents
    with pytest.raises(DataError, match=r"`me/other` is no file .*; check the spelling and the network") as error:
        opened("me/other")
    assert "\n" not in str(error.value)


#: What is asked to learn which commit a name stands for, and nothing else.
COMMIT = r"GET /api/datasets/me/texts(/revision/main)?$"
LICENSED = {"README.md": b"---\nlicense: mit\n---\n"}


def holding(folder: Path, word: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


def test_the_commit_is_asked_for_again(server: hub.FakeHub, tmp_path: Path, documents: list[str]) -> None:
    server.add("datasets/me/texts", {**files(LINES, [f"{text} marker" for text in documents]), **LICENSED})
    server.breaking = (COMMIT, 1)
    source_of(opened())
    assert server.breaking == (COMMIT, 0)
    assert not holding(tmp_path / "caches", b"marker")


@pytest.mark.parametrize(
    ("status", "reason"), [(None, ": .+; check the spelling and the network"), (503, ".* 503; try")]
)
def test_where_the_commit_is_not_told_nothing_is_downloaded(
    server: hub.FakeHub, tmp_path: Path, documents: list[str], status: int | None, reason: str
) -> None:
    server.add("datasets/me/texts", {**files(LINES, [f"{text} marker" for text in documents]), **LICENSED})
    server.breaking, server.failing = ((COMMIT, 10**6), None) if status is None else (None, (COMMIT, status))
    with pytest.raises(DataError, match=rf"^`me/texts` is no file .* loaded from the Hub{reason}") as error:
        opened()
    assert "\n" not in str(error.value)
    assert server.asked.count("GET /api/datasets/me/texts") == opening.RETRIES + 1
    assert not fetched(server)
    assert not holding(tmp_path / "caches", b"marker")


def test_where_the_commit_is_not_told_the_copy_is_read(server: hub.FakeHub, documents: list[str]) -> None:
    repo = server.add("datasets/me/texts", {**files(LINES, documents), **LICENSED})
    fetch(HubName("me/texts"))
    repo.commit("main", {**repo.files(), **files(LINES, ["w1"], "data/train-new")})
    server.breaking, asked = (COMMIT, 10**6), len(server.asked)
    corpus = opened()
    assert isinstance(corpus.sources[0], StoredDataset)
    assert list(corpus.documents()) == documents  # as they were when the copy was made
    assert not fetched(server, asked)
    assert not config.HF_HUB_OFFLINE


@pytest.mark.parametrize("status", [None, 503])
def test_sizes_that_are_not_told(
    server: hub.FakeHub, documents: list[str], monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    card = CARD.replace("held/*.jsonl", "en/train-0.jsonl").replace("sw/*.jsonl", "en/train-1.jsonl")
    server.add("datasets/me/counted", {**files(LINES, documents, "en/train"), "README.md": card.encode()})
    card = card[: card.index("  splits:")] + "---\n"
    server.add("datasets/me/texts", {**files(LINES, documents, "en/train"), "README.md": card.encode()})
    original = DatasetBuilder.as_streaming_dataset

    def fail_afterwards(builder: DatasetBuilder) -> object:
        splits = original(builder)
        huggingface_hub.HfFileSystem.clear_instance_cache()  # or the sizes are known from the listing
        server.breaking, server.failing = (("/api/", 10**6), None) if status is None else (None, ("/api/", status))
        return splits

    monkeypatch.setattr(DatasetBuilder, "as_streaming_dataset", fail_afterwards)
    with pytest.raises(
        DataError, match=r"^`me/texts:en` is no file .* loaded from the Hub.*; (check|try again)"
    ) as error:
        opened("me/texts:en")
    assert "\n" not in str(error.value)
    # Where the number of rows is known, it is not even asked.
    server.breaking = server.failing = None
    counted = HubName("me/counted", "en")
    source = opening._open_commit(counted, opening._commit_of(counted), None, SEGMENT)
    assert (source.rows, source.stored) == (len(documents), 0)


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", b""), ("a.json", b"[]"), ("a.txt", b""), ("a.csv", b"text\n")]
)
def test_a_split_without_rows(server: hub.FakeHub, name: str, content: bytes) -> None:
    server.add("datasets/me/empty", {name: content})
    with pytest.raises(DataError, match=r"^`me/empty( train)?` holds no rows; give a data set with at least one docu"):
        opened("me/empty")


def test_a_lost_connection_is_known_without_names_that_are_private(
    server: hub.FakeHub, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the Hub's library itself tries again at is all of it taken for a lost connection."""
    kinds = signature(huggingface_hub.utils.http_backoff).parameters["retry_on_exceptions"].default
    assert all(rows.lost(kind("it broke")) for kind in kinds)
    assert not rows.lost(ValueError("it broke"))
    server.add("datasets/me/texts", files(PACKED, documents))
    corpus = opened()
    server.breaking = ("train-2", 2)
    monkeypatch.delattr("huggingface_hub.utils._http.http_backoff")
    assert list(corpus.documents()) == documents


def test_where_no_tokens_are_kept_it_is_refused(server: hub.FakeHub, documents: list[str], tmp_path: Path) -> None:
    server.add("datasets/me/texts", files(LINES, documents))
    instead = r"`hf download --repo-type dataset me/texts --local-dir FOLDER` and give FOLDER"
    with pytest.raises(
        DataError, match=rf"`me/texts train` is streamed from the Hub and cannot .*, or fetch.*{instead}"
    ):
        opened().stream(WORDS, 16)
    with pytest.raises(DataError, match="is streamed from the Hub and cannot be read from the middle"):
        TokenOptions.make({"corpus": "me/texts", "token_cache": "off"}).open_texts()
    options = TokenOptions.make({"corpus": "me/texts", "token_cache": str(tmp_path)})
    corpus = options.open_texts()
    assert options.token_settings(corpus)["cache"] == str(tmp_path)
    unsaid = TokenOptions.make({"corpus": "me/texts"})
    assert unsaid.token_settings(corpus)["cache"].endswith("tokens")
    with keeping_nothing(), pytest.raises(DataError, match=r"`me/texts train` is streamed .*`--dry-run` does not keep"):
        unsaid.token_settings(corpus)
