"""Several corpora in turns: each with its share, its own order, and the same whoever asks for an example."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import slimformer
from slimformer import artifact
from slimformer.corpus import open_corpus
from slimformer.corpus.mixing import shares_by_size, shares_by_weight
from slimformer.corpus.mixing.turns import LEAST_SHARE, Turns
from slimformer.corpus.opening import open_mixture
from slimformer.corpus.options import TokenOptions
from slimformer.errors import ConfigError, DataError
from slimformer.methods.elastic.config import ElasticConfig
from slimformer.methods.streaming import open_parts, stream_features
from tests import corpus, forking, zoo
from tests.corpora import making
from tests.corpora.making import ids

WORDS = making.words(9000)


@pytest.fixture
def paths(write):
    """A large corpus of the words from w0 on and a small one of those from w8000 on."""
    large = making.unique_documents([1 + number % 29 for number in range(300)])
    small = [" ".join(f"w{8000 + 10 * line + number}" for number in range(10)) for line in range(12)]
    return [write("large.txt", "\n".join(large)), write("small.txt", "\n".join(small))]


def is_small(example: list[int]) -> bool:
    return max(example) >= 4 + 8000


@given(st.lists(st.floats(0.01, 1000), min_size=2, max_size=6), st.integers(0, 9), st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_every_member_gives_its_own_examples_one_after_the_other(weights, seed, start):
    shares = shares_by_weight(weights)
    turns, count = Turns(shares, seed), 3000
    given = [turns(number) for number in range(start, start + count)]
    for member, share in enumerate(shares):
        own = [index for each, index in given if each == member]
        assert own == list(range(own[0], own[0] + len(own))) if own else True
        stretch = max(1024, int(np.ceil(2 / min(shares))))
        assert abs(len(own) - share * count) <= share * 2 * stretch + 4
        if own:
            assert abs(own[0] - share * start) <= share * stretch + 2
    other = Turns(shares, seed)
    for number in random.Random(seed).sample(range(count), 20):  # as a resumed run asks
        assert other(start + number) == given[number]


def test_each_gives_its_share_from_the_first_example_on():
    shares = [LEAST_SHARE * 10, 0.25, 0.75 - LEAST_SHARE * 10]
    turns = Turns(shares, 0)
    ends = [turns.counts(number * 2 * 10**5) for number in range(50)]
    for number, counts in enumerate(ends):
        assert counts.sum() == number * 2 * 10**5
        assert np.abs(counts - np.array(shares) * number * 2 * 10**5).max() <= 1
    assert (np.diff(ends, axis=0) >= 0).all()


def test_the_order_depends_on_the_seed():
    one, same, other = (Turns([0.5, 0.5], seed) for seed in (3, 3, 4))
    members = [[turns(number)[0] for number in range(200)] for turns in (one, same, other)]
    assert members[0] == members[1] != members[2]


@pytest.mark.parametrize("more", [{}, {"workers": 2}, {"cache": True}, {"cache": True, "workers": 1}])
def test_the_examples_are_those_of_the_members(paths, tmp_path, more):
    if "cache" in more:
        more = {**more, "cache": tmp_path / "cache"}
    mixture = open_mixture(paths, [3, 1])
    stream = mixture.stream(WORDS, 16, seed=5, buffer=2000, **more)
    examples = ids(stream, 400)
    assert sum(map(is_small, examples)) == pytest.approx(100, abs=25)
    for number, path in enumerate(paths):
        alone = open_corpus(path).stream(WORDS, 16, seed=5 + number, buffer=1000)
        own = [each for each in examples if is_small(each) == (number == 1)]
        assert own == ids(alone, len(own))
    assert stream.epoch_size() == sum(each.epoch_size() for each in stream.streams)
    later = mixture.stream(WORDS, 16, seed=5, buffer=2000, **more)
    assert ids(later, 50, start=350) == examples[350:]


def test_a_memo_serves_all_members(paths, tmp_path):
    memo = tmp_path / "memo.jsonl"
    mixture = open_mixture(paths, [1, 1])
    stream = mixture.stream(WORDS, 16, memo=memo, buffer=600)
    before = ids(stream, 300)
    found = []
    for path in paths:
        one, counting = making.counted(open_corpus(path))
        found.append((one, counting))
    again = type(mixture)([one for one, _ in found], mixture.shares).stream(WORDS, 16, memo=memo, buffer=600)
    assert again[299]["input_ids"].tolist() == before[299]
    assert sum(len(counting.reads) for _, counting in found) == 1


def test_shares_by_size_are_those_of_xlm_r(paths):
    corpora = [open_corpus(path) for path in paths]
    sizes = np.array([each.size for each in corpora], float)
    assert shares_by_size(corpora, 1.0) == pytest.approx(sizes / sizes.sum())
    flat = sizes**0.3 / (sizes**0.3).sum()
    assert shares_by_size(corpora, 1 / 0.3) == pytest.approx(flat)
    assert open_mixture(paths, temperature=1 / 0.3).shares == pytest.approx(flat)


def test_no_text_is_learned_from_and_held_out_whatever_it_lies_in(write):
    """Members of other sizes hold out another part of theirs; a mixture holds out the same part of all."""
    rng = random.Random(0)
    documents = [" ".join(rng.choices(corpus.WORDS, k=12)) for _ in range(80_000)]
    paths = [write("large.txt", "\n".join(documents)), write("small.txt", "\n".join(documents[:500]))]
    mixture = open_mixture(paths, [1, 1])
    assert mixture.size > 2**22 > open_corpus(paths[1]).size
    learned, held_out = (mixture.part(held_out=each) for each in (False, True))
    assert set(learned.documents()).isdisjoint(held_out.documents())
    assert len(list(held_out.documents())) == pytest.approx(805, rel=0.15)
    assert learned.shares == mixture.shares


def test_the_first_documents_are_divided_too(paths):
    mixture = open_mixture(paths, [1, 1])
    first = list(mixture.first_documents(400))
    small = [each for each in first if each.startswith("w8")]
    assert 190 <= sum(map(len, small)) <= 260
    assert 190 <= sum(len(each) for each in first if each not in small) <= 400
    assert len(mixture.first(400)) == len(first)


def test_all_of_it_is_estimated_and_checked(paths, write):
    mixture = open_mixture(paths, [1, 1])
    extent = mixture.estimate(WORDS)
    assert extent.documents == 312
    assert extent.tokens == sum(open_corpus(path).estimate(WORDS).tokens for path in paths)
    assert sorted(mixture.documents()) == sorted("\n".join(path.read_text() for path in paths).split("\n"))
    bad = write("bad.jsonl", '{"text": "a"}\n' * 200_000 + "[1\n")
    with pytest.raises(DataError, match=r"bad\.jsonl"):
        open_mixture([*paths, bad], [1, 1, 1]).check()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"corpus": ["a"], "corpus_weights": "1"}, "divides several paths of `corpus`, and there is 1"),
        ({"corpus_temperature": 2}, "and there is none"),
        ({"corpus": ["a", "b"], "corpus_weights": "1,2,3"}, "`corpus_weights` is 3 numbers, and `corpus` 2 paths"),
        ({"corpus": ["a", "b"], "corpus_weights": "1,0"}, "corpus_weights"),
        ({"corpus": ["a", "b"], "corpus_weights": "1,much"}, "corpus_weights"),
        ({"corpus": ["a", "b"], "corpus_weights": "1,nan"}, "corpus_weights"),
        ({"corpus": ["a", "b"], "corpus_temperature": 0}, "corpus_temperature"),
        ({"corpus": ["a", "b"], "corpus_temperature": 2, "corpus_weights": "1,2"}, "leave one of them out"),
    ],
)
def test_impossible_mixtures_are_refused(given, words):
    with pytest.raises(ConfigError, match=words) as raised:
        TokenOptions.make(given)
    assert "\n" not in str(raised.value)


def test_members_that_give_nothing_are_refused(paths, write):
    blank = write("blank.txt", " \n \n")
    with pytest.raises(DataError, match=r"blank\.txt` holds no text to give its share of"):
        open_mixture([*paths, blank], [1, 1, 1])
    with pytest.raises(DataError, match="corpus 2 would give 1e-09 of the examples"):
        open_mixture(paths, [1e9, 1])
    with pytest.raises(DataError, match="there are 3 weights for 2 paths"):
        open_mixture(paths, [1, 1, 1])


QUICK = {"layers": 1, "hidden": 24, "heads": 4, "batch_size": 8, "max_length": 16, "lr": 1e-3}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny teacher and two texts."""
    folder = tmp_path_factory.mktemp("mixing")
    zoo.build("bert").save_pretrained(folder / "teacher")
    corpus.tokenizer().save_pretrained(folder / "teacher")
    rng = random.Random(0)
    for name, lines in (("large", 400), ("small", 60)):
        (folder / f"{name}.txt").write_text(
            "".join(" ".join(rng.choices(corpus.WORDS, k=9)) + "\n" for _ in range(lines))
        )
    return folder


def both(place) -> list[str]:
    return [str(place / "large.txt"), str(place / "small.txt")]


def test_weights_say_what_is_learned_and_are_noted(place, tmp_path):
    out = tmp_path / "out"
    settings = {"teacher": place / "teacher", "corpus": both(place), **QUICK, "max_steps": 4, "quiet": True}
    slimformer.distill(**settings, corpus_weights="1,3", out=out)
    config = artifact.read_manifest(out).steps[-1].config
    assert list(config["corpus_weights"]) == [1, 3]
    slimformer.distill(**settings, corpus_temperature=2, out=tmp_path / "tempered")
    config = artifact.read_manifest(tmp_path / "tempered").steps[-1].config
    assert config["corpus_temperature"] == 2
    sizes = [(place / f"{name}.txt").stat().st_size ** 0.5 for name in ("large", "small")]
    assert config["corpus_weights"] == pytest.approx([size / sum(sizes) for size in sizes], rel=0.01)
    weights = [load_file(each / "model.safetensors") for each in (out, tmp_path / "tempered")]
    assert any(not torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.slow
def test_killed_and_resumed_ends_with_the_same_bytes(place, tmp_path):
    def command(name: str, weights: str = "1,3"):
        return (
            "distill", "--teacher", place / "teacher", "--corpus", *both(place), "--corpus-weights", weights,
            "--layers", 1, "--hidden", 24, "--heads", 4, "--batch-size", 8, "--max-length", 16, "--max-steps", 12,
            "--save-every", 1, "--threads", 1, "--out", tmp_path / name, "--resume",
        )  # fmt: skip

    assert forking.run(*command("whole")).code == 0
    checkpoint = tmp_path / "killed.training" / "checkpoint-5"
    assert forking.killed_when(checkpoint.exists, *command("killed"))
    other = forking.run(*command("killed", weights="1,2"))
    assert other.code == 1
    assert "had `--corpus-weights` = `[1.0, 3.0]`, not" in other.err
    assert forking.run(*command("killed")).code == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert files[0] == files[1]


@pytest.mark.slow
def test_adapting_and_elastic_training_take_mixtures(place, tmp_path):
    given = {"corpus": both(place), "corpus_temperature": 3.33, "max_steps": 2, "batch_size": 8, "quiet": True}
    slimformer.adapt(model=place / "teacher", rounds=0, head_steps=1, max_length=16, **given, out=tmp_path / "adapted")
    slimformer.elastic(layers=1, hidden=32, heads=4, vocabulary=300, max_length=32, **given, out=tmp_path / "elastic")
    for name in ("adapted", "elastic"):
        weights = artifact.read_manifest(tmp_path / name).steps[-1].config["corpus_weights"]
        assert sum(weights) == pytest.approx(1)
        assert 0.5 < weights[0] < 0.75
    config = ElasticConfig(corpus=both(place), corpus_weights=(1, 9), layers=1, hidden=32, heads=4, epochs=1)
    data = open_parts(config, causal=True)
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "elastic")
    assert stream_features(config, data, tokenizer, 32).shares == [0.1, 0.9]


def test_images_are_not_mixed(place, tmp_path):
    from tests.runs import viewer

    folder = viewer(tmp_path / "vit")
    with pytest.raises(ConfigError, match="corpus_weights"):
        slimformer.distill(teacher=folder, corpus=["a", "b"], corpus_weights="1,1", layers=1, out=tmp_path / "out")
