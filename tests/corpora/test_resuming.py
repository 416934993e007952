"""Going on after a kill: the same examples, at the price of one block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from slimformer.corpus import open_corpus
from slimformer.errors import DataError
from tests.conftest import ROOT
from tests.corpora import making
from tests.corpora.making import ids

WORDS = making.words()
SETTINGS = {"buffer": 900, "seed": 5}


@pytest.fixture
def path(write):
    return write("a.txt", "\n".join(making.unique_documents([1 + number % 29 for number in range(200)])))


@pytest.fixture
def memo(tmp_path):
    return tmp_path / "run" / "memo.jsonl"


def opened(path):
    return making.counted(open_corpus(path, segment=256))


def blocks_in(memo) -> list[int]:
    return [json.loads(line)["block"] for line in memo.read_text().splitlines()]


def test_a_resumed_stream_reads_the_present_block_only(path, memo):
    corpus, counting = opened(path)
    stream = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    in_order = ids(stream, 2 * stream.epoch_size() + 60)
    reached = len(in_order) - 1
    corpus, counting = opened(path)
    resumed = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    assert resumed[reached]["input_ids"].tolist() == in_order[reached]
    block = max(blocks_in(memo))
    assert block > 2 * resumed._order.blocks
    assert counting.reads == resumed._order.segments(block)
    counting.reads.clear()
    assert resumed.epoch_size() == stream.epoch_size()
    assert not counting.reads


def test_without_a_memo_everything_up_to_there_is_read(path):
    corpus, counting = opened(path)
    size = corpus.stream(WORDS, 16, **SETTINGS).epoch_size()
    counting.reads.clear()
    corpus.stream(WORDS, 16, **SETTINGS)[size - 1]
    assert sorted(counting.reads) == list(range(len(corpus.sizes)))


@pytest.mark.parametrize("harm", ["torn", "noise", "twice", "lost"])
def test_a_harmed_memo_costs_time_at_most(path, memo, harm):
    corpus, _ = opened(path)
    stream = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    in_order = ids(stream, stream.epoch_size() + 40)
    lines = memo.read_bytes().splitlines(keepends=True)
    match harm:
        case "torn":
            memo.write_bytes(b"".join(lines)[:-9])
        case "noise":
            memo.write_bytes(b'\xff\x00\n[1]\n{"stream": 3}\n7\n\n' + b"".join(lines))
        case "twice":
            memo.write_bytes(b"".join(line for line in lines for _ in range(2)))
        case "lost":
            memo.write_bytes(b"".join(lines[:2] + lines[3:]))
    corpus, counting = opened(path)
    resumed = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    assert ids(resumed, 5, len(in_order) - 5) == in_order[-5:]
    fewest = {"torn": 1, "noise": 1, "twice": 1, "lost": len(lines) - 2}[harm]
    blocks = [resumed._order.segments(block) for block in range(len(lines))]
    assert counting.reads == [segment for block in blocks[-fewest:] for segment in block]
    again = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    assert len(again._memo) == len(lines)  # what was lost is written anew, after whatever was torn


def test_a_memo_of_other_settings_is_ignored_and_kept(path, memo):
    corpus, _ = opened(path)
    size = corpus.stream(WORDS, 16, memo=memo, **SETTINGS).epoch_size()
    written = memo.read_text()
    others = [
        corpus.stream(WORDS, 17, memo=memo, **SETTINGS),
        corpus.stream(WORDS, 16, memo=memo, buffer=900, seed=6),
        corpus.stream(WORDS, 16, memo=memo, buffer=901, seed=5),
        corpus.stream(WORDS, 16, memo=memo, pack=False, **SETTINGS),
        corpus.stream(making.words(4001), 16, memo=memo, **SETTINGS),
        open_corpus(path, segment=257).stream(WORDS, 16, memo=memo, **SETTINGS),
    ]
    path.write_text("w1\n" + path.read_text())
    others.append(open_corpus(path, segment=256).stream(WORDS, 16, memo=memo, **SETTINGS))
    assert [len(stream._memo) for stream in others] == [0] * 7
    others[0][0]
    assert memo.read_text().startswith(written)
    assert len(corpus.stream(WORDS, 17, memo=memo, **SETTINGS)._memo) == 0  # the corpus is another by now
    assert size > 0


def test_files_that_change_under_a_run_are_noticed(path, memo):
    corpus, _ = opened(path)
    stream = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    stream.epoch_size()
    content = path.read_bytes()
    path.write_bytes(content[:1000] + b"\n" * 2000 + content[3000:])
    with pytest.raises(DataError, match=r"block \d+ of the corpus has \d+ examples now and had \d+ before"):
        ids(stream, stream.epoch_size())


def test_an_epoch_is_estimated_by_its_first_block_and_stays_as_long(path, memo, tmp_path):
    corpus, counting = opened(path)
    size = opened(path)[0].stream(WORDS, 16, **SETTINGS).epoch_size()
    stream = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    assert stream._order.blocks > 3
    estimate = stream.expected_epoch()
    assert estimate == pytest.approx(size, rel=0.15)  # blocks of a few hundred words
    assert counting.reads == stream._order.segments(0)
    counted = opened(path)[0].stream(WORDS, 16, cache=tmp_path / "tokens", **SETTINGS)
    assert counted.expected_epoch() == counted.epoch_size() == size
    # A run that goes on takes as many steps, whether tokens are kept by then or not.
    later = opened(path)[0].stream(WORDS, 16, memo=memo, cache=tmp_path / "tokens", **SETTINGS)
    assert later.expected_epoch() == estimate
    assert later.epoch_size() == size
    whole = opened(path)[0].stream(WORDS, 16)
    assert whole._order.blocks == 1
    assert whole.expected_epoch() == whole.epoch_size()


def test_several_processes_may_share_a_memo(path, memo):
    streams = [opened(path)[0].stream(WORDS, 16, memo=memo, **SETTINGS) for _ in range(2)]
    size = opened(path)[0].stream(WORDS, 16, **SETTINGS).epoch_size()
    for number in range(size):
        streams[number % 2][number]
    corpus, counting = opened(path)
    assert corpus.stream(WORDS, 16, memo=memo, **SETTINGS).epoch_size() == size
    assert not counting.reads


def test_one_process_of_a_machine_writes(path, memo, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    opened(path)[0].stream(WORDS, 16, memo=memo, **SETTINGS)[0]
    assert not memo.exists()
    monkeypatch.setenv("LOCAL_RANK", "0")
    opened(path)[0].stream(WORDS, 16, memo=memo, **SETTINGS)[0]
    assert blocks_in(memo) == [0]


READER = """
import sys
from slimformer.corpus import open_corpus
from tests.corpora import making
stream = open_corpus(sys.argv[1], segment=256).stream(making.words(), 16, memo=sys.argv[2], buffer=900, seed=5)
for number in range(10**9):
    print(number, *stream[number]["input_ids"].tolist(), flush=True)
"""


@pytest.mark.slow
def test_after_a_real_kill_the_stream_goes_on_as_if_nothing_had_happened(path, memo):
    command = [sys.executable, "-c", READER, str(path), str(memo)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        lines = [process.stdout.readline() for _ in range(700)]
        time.sleep(0.05)  # it goes on meanwhile, and dies anywhere
        process.send_signal(signal.SIGKILL)
    corpus, counting = opened(path)
    resumed = corpus.stream(WORDS, 16, memo=memo, **SETTINGS)
    after = ids(resumed, 40, 680)
    blocks = sorted({resumed._memo.find(number)[0] for number in range(680, 720)})
    assert blocks[0] > 20
    assert counting.reads == [segment for block in blocks for segment in resumed._order.segments(block)]
    assert ids(corpus.stream(WORDS, 16, **SETTINGS), 40, 680) == after
    assert [[int(word) for word in line.split()[1:]] for line in lines[680:]] == after[:20]
