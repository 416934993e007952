"""Tokens that are kept: the examples of the same stream without them, whoever made them and however often killed."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.numpy import load_file

from slimformer.corpus import open_corpus
from slimformer.corpus.examples import Encoder
from slimformer.corpus.tokens import building
from slimformer.corpus.tokens.building import ShardMaker, key_of, open_tokens
from slimformer.corpus.tokens.processes import Processes
from slimformer.corpus.tokens.shards import INDEX
from slimformer.errors import DataError
from tests.conftest import ROOT
from tests.corpora import making
from tests.corpora.making import ids

WORDS = making.words()
BYTES = making.gpt2()


@pytest.fixture
def documents():
    rng = random.Random(0)
    return making.unique_documents([rng.randint(1, 30) for _ in range(200)])


@pytest.fixture
def path(write, documents):
    return write("a.txt", "\n".join(documents))


@pytest.fixture
def place(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(building, "SHARD", 2000)


def opened(path):
    return open_corpus(path, segment=256)


def shards(place):
    return sorted(path for path in place.glob("*/*.safetensors") if path.name != INDEX)


@pytest.mark.parametrize("settings", [{"length": 16}, {"length": 7, "seed": 3}, {"length": 16, "pack": False}])
@pytest.mark.parametrize("buffer", [900, 10**6])
def test_examples_are_those_without_a_cache(path, place, settings, buffer):
    without = opened(path).stream(WORDS, buffer=buffer, **settings)
    cached = opened(path).stream(WORDS, buffer=buffer, cache=place, workers=1, **settings)
    count = 2 * without.epoch_size() + 20
    assert cached.epoch_size() == without.epoch_size()
    assert ids(cached, count) == ids(without, count)
    assert len(shards(place)) > 3


@pytest.mark.slow
def test_examples_are_the_same_with_any_number_of_processes(path, place):
    without = opened(path).stream(WORDS, 16, buffer=900)
    expected = ids(without, without.epoch_size())
    contents = []
    for workers in (1, 2, 3):
        cached = opened(path).stream(WORDS, 16, buffer=900, cache=place / str(workers), workers=workers)
        assert ids(cached, len(expected)) == expected
        loaded = [load_file(each) for each in shards(place / str(workers))]
        contents.append([{name: tensor.tolist() for name, tensor in each.items()} for each in loaded])
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize("held_out", [False, True])
def test_a_part_of_a_corpus_has_tokens_of_its_own(path, place, held_out):
    part = opened(path).part(held_out=held_out)
    without, cached = (part.stream(WORDS, 16, cache=cache, workers=1) for cache in (None, place))
    assert ids(cached, 40) == ids(without, 40)
    opened(path).part(held_out=not held_out).stream(WORDS, 16, cache=place, workers=1)
    assert len(list(place.iterdir())) == 2


def test_one_cache_serves_every_length_and_order(path, place):
    opened(path).stream(WORDS, 16, cache=place, workers=1)
    written = {each: each.stat().st_mtime_ns for each in place.rglob("*.safetensors")}
    for settings in ({"length": 9}, {"length": 16, "seed": 8}, {"length": 30, "pack": False}):
        opened(path).stream(WORDS, cache=place, workers=1, **settings)[3]
    assert {each: each.stat().st_mtime_ns for each in place.rglob("*.safetensors")} == written


def test_another_tokenizer_or_a_changed_corpus_is_never_answered_from_it(path, place, documents):
    opened(path).stream(WORDS, 16, cache=place, workers=1)
    other = opened(path).stream(BYTES, 16, cache=place, workers=1)
    assert ids(other, 5) == ids(opened(path).stream(BYTES, 16), 5)
    # Neither names nor sizes nor ends tell that the middle was changed.
    content = path.read_text()
    path.write_text(content.replace(documents[100], documents[100][::-1]))
    os.utime(path, ns=(1, 1))
    changed = opened(path).stream(WORDS, 16, cache=place, workers=1)
    without = opened(path).stream(WORDS, 16)
    assert ids(changed, without.epoch_size()) == ids(without, without.epoch_size())
    assert len(list(place.iterdir())) == 3


@pytest.mark.parametrize("harm", ["no index", "torn index", "torn shard", "lost shard", "foreign shard", "draft"])
def test_what_was_left_half_written_is_made_again(path, place, harm):
    expected = ids(opened(path).stream(WORDS, 16, cache=place, workers=1), 40)
    (index,) = place.glob(f"*/{INDEX}")
    shard, kept = shards(place)[1], shards(place)[0]
    before = kept.stat().st_mtime_ns
    match harm:
        case "no index":
            index.unlink()
        case "torn index":
            index.write_bytes(index.read_bytes()[:-9])
        case "torn shard":
            shard.write_bytes(shard.read_bytes()[:-9])
        case "lost shard":
            shard.unlink()
        case "foreign shard":
            opened(path).stream(BYTES, 16, cache=place / "other", workers=1)
            shutil.copy(shards(place / "other")[1], shard)
            index.unlink()
        case "draft":
            shard.rename(shard.with_name(f".{shard.name}.77.tmp"))
    assert ids(opened(path).stream(WORDS, 16, cache=place, workers=1), 40) == expected
    assert kept.stat().st_mtime_ns == before  # what is whole is not made again
    assert not list(place.rglob("*.tmp"))


@pytest.mark.parametrize("ending", [".txt.gz", ".csv.gz"])
def test_a_compressed_corpus_is_streamed_into_the_cache(write, path, place, documents, ending):
    plain = path if ending == ".txt.gz" else write("a.csv", "text,n\n" + "\n".join(f"{each},1" for each in documents))
    packed = write(f"b/a{ending}", gzip.compress(plain.read_bytes()))
    without = opened(plain).stream(WORDS, 16, buffer=900)
    cached = opened(packed).stream(WORDS, 16, buffer=900, cache=place, workers=1)
    assert ids(cached, without.epoch_size()) == ids(without, without.epoch_size())
    shards(place)[2].unlink()
    again = opened(packed).stream(WORDS, 16, buffer=900, cache=place, workers=1)
    assert ids(again, 30) == ids(cached, 30)


def test_a_compressed_corpus_needs_a_cache(write):
    packed = write("a.txt.gz", gzip.compress(b"text\n"))
    with pytest.raises(DataError, match=r"a.txt.gz` is compressed and .* a folder with `--token-cache`, or unpack"):
        open_corpus(packed).stream(WORDS, 16)


def test_faults_are_outlived_and_said(write, place, caplog):
    path = write("a.jsonl", '{"text": "w1"}\n' * 30 + "x" * 300 + '\n{"text": "w2"}\n' + "y" * 300 + "\n")
    with caplog.at_level(logging.WARNING, "slimformer.corpus"):
        stream = opened(path).stream(WORDS, 16, cache=place, workers=1)
    assert stream.epoch_size() > 0
    assert "is not valid JSON" in caplog.text
    assert len(caplog.records) == 1


def test_progress_reaches_the_end(path, place):
    seen = []
    opened(path).stream(WORDS, 16, cache=place, workers=1, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_place_that_cannot_be_written(path, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written to `.*file`: not a directory; give another folder with"):
        opened(path).stream(WORDS, 16, cache=tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission(path, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="permission denied; give another folder"):
        opened(path).stream(WORDS, 16, cache=tmp_path / "cache")
    tmp_path.chmod(0o700)


def test_a_full_disk_is_said_before_work_and_in_the_middle_of_it(path, place, monkeypatch):
    usage = shutil.disk_usage(path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=7))
    with pytest.raises(DataError, match=r"no space for the tokens .* about [\d,]+ bytes are needed, 7 are free; free"):
        opened(path).stream(WORDS, 16, cache=place)
    assert not shards(place)
    monkeypatch.undo()
    monkeypatch.setattr(building, "SHARD", 2000)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"no space for the tokens of the corpus in .*no space left on device"):
        opened(path).stream(WORDS, 16, cache=place, workers=1)
    assert [each.name for each in place.glob("*/*")] == [".lock"]


def test_what_a_stream_reads_may_not_vanish(path, place):
    stream = opened(path).stream(WORDS, 16, cache=place, workers=1)
    shutil.rmtree(place)
    with pytest.raises(DataError, match=r"with tokens of the corpus cannot be read any more: .*; start again"):
        stream[0]


def test_streams_go_to_other_processes(path, place):
    stream = opened(path).stream(WORDS, 16, cache=place, workers=1)
    assert ids(pickle.loads(pickle.dumps(stream)), 30) == ids(stream, 30)


BUILDER = """
import sys
from slimformer.corpus import open_corpus
from slimformer.corpus.tokens import building
from tests.corpora import making
building.SHARD = 2000
def progress(done, total):
    print(done, flush=True)
open_corpus(sys.argv[1], segment=256).stream(making.words(), 16, cache=sys.argv[2], workers=2, progress=progress)
"""


@pytest.mark.slow
def test_after_a_real_kill_what_is_whole_is_kept_and_nobody_is_left(path, place):
    command = [sys.executable, "-c", BUILDER, str(path), str(place)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    time.sleep(0.5)
    left = {each: each.stat().st_mtime_ns for each in shards(place)}
    assert left
    without = opened(path).stream(WORDS, 16, buffer=900)
    cached = opened(path).stream(WORDS, 16, buffer=900, cache=place, workers=1)
    assert ids(cached, without.epoch_size()) == ids(without, without.epoch_size())
    assert all(each.stat().st_mtime_ns == time for each, time in left.items())


class Failing:
    """Fails in the ways a job can."""

    def __call__(self, job: str) -> str:
        if job == "raise":
            raise DataError("a reason")
        if job == "end":
            os._exit(3)
        return job.upper()


@pytest.mark.slow
def test_processes_answer_in_order_and_say_what_failed():
    with Processes[str, str](Failing(), 2) as processes:
        assert list(processes.map("abcdefg", lambda job: None)) == list("ABCDEFG")
        with pytest.raises(DataError, match="a reason"):
            processes.submit("raise").result()
        with pytest.raises(DataError, match=r"ended before its work was done \(code 3\)"):
            processes.submit("end").result()


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("length", [3, 4, 16, 4000])
def test_examples_are_counted_by_the_lengths_of_kept_tokens(path, place, pack, length):
    settings = {"pack": pack, "buffer": 900}
    stored = opened(path).stream(WORDS, length, cache=place, **settings)
    without = opened(path).stream(WORDS, length, **settings)
    assert stored.epoch_size() == without.epoch_size()
    assert stored._present is None  # no token was read
    assert ids(stored, stored.epoch_size()) == ids(without, without.epoch_size())


@pytest.mark.slow
def test_blocks_made_ahead_are_those_made_when_they_are_needed(path):
    without = opened(path).stream(WORDS, 16, buffer=900)
    ahead = opened(path).stream(WORDS, 16, buffer=900, workers=2)
    size = without.epoch_size()
    assert ids(ahead, 2 * size + 20) == ids(without, 2 * size + 20)
    for number in (3, size, 0, size // 2):  # the blocks expected are others then
        assert ids(ahead, 2, number) == ids(without, 2, number)
    assert ids(pickle.loads(pickle.dumps(ahead)), 3) == ids(without, 3)


@pytest.mark.slow
def test_faults_in_blocks_made_ahead_are_said(write, caplog):
    path = write("a.jsonl", '{"text": "w1"}\n' * 30 + "x" * 300 + '\n{"text": "w2"}\n')
    with caplog.at_level(logging.WARNING, "slimformer.corpus"):
        opened(path).stream(WORDS, 16, workers=1).epoch_size()
    assert "is not valid JSON" in caplog.text


def test_the_key_follows_from_files_and_tokenizer_alone(path, place):
    encoder = Encoder(WORDS)
    corpus = opened(path)
    assert key_of(corpus, encoder) == key_of(opened(path), Encoder(making.words()))
    others = [key_of(open_corpus(path, segment=300), encoder), key_of(corpus.part(held_out=True), encoder)]
    assert len({key_of(corpus, encoder), *others}) == 3
    assert isinstance(pickle.loads(pickle.dumps(ShardMaker(corpus, encoder, place, "key"))), ShardMaker)
    assert open_tokens(corpus, encoder, place, 1).sizes.tolist() == corpus.sizes.tolist()


@pytest.mark.parametrize(("ending", "sign"), [("csv", ","), ("tsv", "\t")])
def test_the_key_tells_whether_the_first_line_is_text(tmp_path, ending, sign):
    path = tmp_path / f"a.{ending}.gz"
    rows = "".join(f"good film {number}{sign}{number}\n" for number in range(9))
    path.write_bytes(gzip.compress(f"text{sign}n\n{rows}".encode(), mtime=0))
    named, numbered = (open_corpus(path, text_column=column, header=column == "text") for column in ("text", "0"))
    assert len(list(numbered.documents())) == len(list(named.documents())) + 1
    assert key_of(named, Encoder(WORDS)) != key_of(numbered, Encoder(WORDS))
