"""A smaller size that drafts: the same answers through pipeline and command line, alone and in many threads."""

from __future__ import annotations

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import slimformer
from slimformer.errors import ConfigError, SizeError
from slimformer.inference.evaluation import evaluate
from slimformer.inference.pipeline import open_pipeline
from slimformer.runtime.native import is_built
from slimformer.sizes import Draft, Elastic
from slimformer.tasks.options import TaskOptions, load_data
from tests import corpus, runs
from tests.runtime.decoding.elastic import elastic_folder

native = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
TEXTS = ["the film was", "a very good plot and the cast", "the end of the", "good"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return runs.elastic_decoder(tmp_path_factory.mktemp("drafting") / "elastic")


@pytest.mark.parametrize("size", [None, "M"])
def test_answers_are_those_of_the_size_in_use(artifact, size):
    expected = open_pipeline(artifact, size=size, max_new_tokens=20)(TEXTS)
    for batch_size in (1, 4):
        assert (
            open_pipeline(artifact, size=size, draft="S", max_new_tokens=20, batch_size=batch_size)(TEXTS) == expected
        )
    assert open_pipeline(artifact, size="S", max_new_tokens=20)(TEXTS) != expected


@native
@pytest.mark.parametrize("size", [None, "M", "S,XL", "phone"])
def test_the_engine_answers_as_without_a_draft(artifact, size, tmp_path):
    folder = shutil.copytree(artifact, tmp_path / "published")
    assert runs.run("extract", folder, "--allocation", "XL,M", "--publish", "phone").code == 0
    expected = open_pipeline(folder, size=size, max_new_tokens=20)(TEXTS)
    for draft in (None, "S"):
        for batch_size in (1, 4):
            pipeline = open_pipeline(
                folder, size=size, draft=draft, max_new_tokens=20, batch_size=batch_size, engine="native"
            )
            assert pipeline(TEXTS) == expected


@native
def test_a_size_with_other_heads_is_taken_out_for_the_engine(tmp_path):
    folder = elastic_folder(tmp_path / "heads", shares=(0.5, 1.0), heads=(0.5, 1.0), processor=corpus.tokenizer())
    pipeline = open_pipeline(folder, size="S", max_new_tokens=8, engine="native")
    assert pipeline(TEXTS) == open_pipeline(folder, size="S", max_new_tokens=8)(TEXTS)
    with pytest.raises(SizeError, match=r"block 0 has fewer heads at `S`, .* leave the engine out"):
        open_pipeline(folder, draft="S", engine="native")
    with pytest.raises(SizeError, match=r"`--draft` is `XL`, and the size in use has other heads"):
        open_pipeline(folder, size="S", draft="XL", engine="native")


@native
def test_packed_sizes_are_drafted_with_on_the_engine(tmp_path):
    folder = elastic_folder(tmp_path / "packed", numbers={}, processor=corpus.tokenizer())
    answers = [
        open_pipeline(folder, max_new_tokens=20, engine="native", **more)(TEXTS)
        for more in ({}, {"draft": "S"}, {"draft": "M"}, {"size": "S"})
    ]
    assert answers[0] == answers[1] == answers[2] != answers[3]


@native
@pytest.mark.parametrize("numbers", [None, {}], ids=["floats", "packed"])
def test_whether_the_engine_runs_a_model_needs_no_tokenizer(numbers, tmp_path):
    done = runs.run("inspect", elastic_folder(tmp_path / "elastic", numbers=numbers), "--runtime", "--json")
    assert (done.code, done.json["runs"]) == (0, True)


def test_from_the_command_line(artifact):
    plain = runs.run("predict", artifact, *TEXTS, "--json")
    drafted = runs.run("predict", artifact, *TEXTS, "--json", "--draft", "S")
    assert (drafted.code, drafted.err, drafted.out) == (0, "", plain.out)
    assert len([json.loads(line) for line in drafted.out.splitlines()]) == len(TEXTS)
    if is_built():
        on_engine = runs.run("predict", artifact, *TEXTS, "--json", "--draft", "S", "--engine", "native")
        assert (on_engine.code, on_engine.err, on_engine.out) == (0, "", plain.out)
    runs.run("predict", artifact, TEXTS[0], "--draft", "XXL").refused("there is no size `XXL`; the model has S (0.25)")


def test_models_that_cannot_draft_are_refused(artifact, tmp_path):
    with pytest.raises(SizeError, match=r"`--draft` is `S`, and `.*` has one size only; leave it out"):
        open_pipeline(runs.decoder(tmp_path / "decoder"), draft="S")
    with pytest.raises(SizeError, match=r"`--draft` is `S`, and `.*` has one size only; leave it out"):
        open_pipeline(tmp_path / "decoder", draft="S", engine="native")
    corpus.model_folder(tmp_path / "encoder")
    with pytest.raises(ConfigError, match=r"`--draft` is `S`, and `.*` generates no text; leave it out"):
        open_pipeline(tmp_path / "encoder", draft="S", task="retrieval")


@pytest.mark.parametrize("engine", ["torch", pytest.param("native", marks=native)])
@pytest.mark.parametrize(("size", "draft"), [(None, "XL"), ("S", "S"), ("S", "M")])
def test_a_draft_that_is_not_smaller_is_refused(artifact, size, draft, engine):
    with pytest.raises(SizeError, match=rf"`--draft` is `{draft}`, which is not smaller than the size in use"):
        open_pipeline(artifact, size=size, draft=draft, engine=engine)


@pytest.mark.slow
def test_requests_of_all_kinds_and_sizes_in_eight_threads(artifact, tmp_path):
    """200 requests for each thread, which evaluate, generate or predict at their own sizes: as one after the other."""
    loaded = slimformer.load(artifact)
    model, tokenizer = loaded.model, loaded.processor
    elastic = Elastic.of(model)
    (tmp_path / "dev.txt").write_text("\n".join(" ".join(corpus.WORDS[start:]) for start in range(6)) + "\n")
    options = TaskOptions.make({"task": "language-modelling", "data": str(tmp_path)})
    data = load_data(options, ("dev",), causal=True)
    features = data.prepare("dev", tokenizer, 24)
    pipelines = {
        (size, draft): open_pipeline(artifact, size=size, draft=draft, max_new_tokens=8)
        for size in ("S", "M", "XL")
        for draft in (None, "S")
        if draft != size
    }

    def measure(size, _):
        with elastic.at(size):
            return evaluate(model, data, "dev", features, tokenizer, 4)

    def write(size, draft):
        inputs = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
        with elastic.at(size):
            settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
            return model.generate(**inputs, **settings, draft=draft and Draft(draft, length=2)).tolist()

    def predict(size, draft):
        return pipelines[size, None if draft == size else draft](TEXTS)

    kinds = list(itertools.product((measure, write, predict), ("S", "M", "XL"), (None, "S")))
    alone = {each: each[0](*each[1:]) for each in kinds}
    assert len({json.dumps(alone[measure, size, None]) for size in ("S", "M", "XL")}) == 3
    requests = [kinds[(7 * number) % len(kinds)] for number in range(8 * 200)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: each[0](*each[1:]), requests))
    assert [number for number, each in enumerate(requests) if answers[number] != alone[each]] == []


def test_drafts_in_threads(artifact):
    """Fewer requests of the same sort, on every commit."""
    model = slimformer.load(artifact).model
    elastic = Elastic.of(model)
    inputs = {
        "input_ids": torch.tensor([[0, 0, 6, 7], [8, 9, 10, 11]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1] * 4]),
    }
    asked = [("XL", None), ("M", "S"), ("S", None), ("XL", Draft("M", length=3)), ("M", None), ("XL", "S")]

    def write(request):
        size, draft = request
        with elastic.at(size):
            return model.generate(**inputs, max_new_tokens=12, do_sample=False, pad_token_id=0, draft=draft).tolist()

    alone = [write(each) for each in asked]
    assert len({json.dumps(each) for each in alone}) == 3
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write, asked * 4)) == alone * 4
