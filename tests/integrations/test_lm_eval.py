"""lm-evaluation-harness on local data: sizes of an elastic decoder, errors before anything is loaded."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf

from slimformer.artifact import Step, save
from slimformer.artifact.storage.elastic import ElasticStorage
from slimformer.errors import ConfigError
from slimformer.sizes import Elastic, make_elastic, make_plain
from slimformer.sizes.table import SizesRecord
from tests import corpus, runs, zoo
from tests.test_old_artifacts import ARTIFACTS

TASK = {
    "task": "tiny_words",
    "dataset_path": "json",
    "output_type": "loglikelihood",
    "test_split": "test",
    "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
    "doc_to_target": "{{' '+text.split(' ')[-1]}}",
    "metric_list": [
        {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
        {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
    ],
}
TEXTS = ["the film was good", "a very dull plot", "the cast and the end was great", "the plot is bad"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    pytest.importorskip("lm_eval", reason="extra `lm-eval` is not installed")
    folder = tmp_path_factory.mktemp("harness")
    model = zoo.enliven(hf.AutoModelForCausalLM.from_pretrained(runs.decoder(folder / "base"))).eval()
    record = SizesRecord.of(make_elastic(model))
    make_plain(model)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder / "base")
    save(folder / "elastic", model, processor=tokenizer, storage=ElasticStorage(record), step=Step(method="elastic"))
    (folder / "tasks").mkdir()
    (folder / "tasks" / "tiny_words.yaml").write_text(json.dumps(TASK))
    (folder / "tasks" / "tiny_words.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return folder


def slow_accuracy(folder, size):
    """Token by token: whether the last word is the likeliest, and its mean negative log likelihood."""
    import slimformer

    loaded = slimformer.load(folder / "elastic")
    tokenizer = loaded.processor
    right, losses = [], []
    for text in TEXTS:
        start = tokenizer(" ".join(text.split(" ")[:-1]), add_special_tokens=False)["input_ids"]
        end = tokenizer(text, add_special_tokens=False)["input_ids"][len(start) :]
        with Elastic.of(loaded.model).at(size), torch.no_grad():
            logits = loaded.model(input_ids=torch.tensor([start + end])).logits[0, len(start) - 1 : -1]
        right.append(logits.argmax(-1).tolist() == end)
        losses.append(float(-logits.log_softmax(-1)[range(len(end)), end].sum()))
    return sum(right) / len(right), sum(losses) / len(losses)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["S", "XL"])
def test_the_harness_measures_a_size_as_by_hand(place, size):
    from math import log

    done = runs.run(
        "evaluate", place / "elastic", "--lm-eval", "tiny_words", "--lm-eval-data", place / "tasks", "--size", size,
        "--json",
    )  # fmt: skip
    metrics = done.json["tasks"]["tiny_words"]
    accuracy, loss = slow_accuracy(place, size)
    assert metrics["acc"] == pytest.approx(accuracy)
    assert log(metrics["perplexity"]) == pytest.approx(loss, rel=1e-4)
    assert done.json["examples"] == {"tiny_words": 4}


@pytest.mark.slow
def test_a_task_of_the_harness_reads_local_data(place, tmp_path):
    """LAMBADA and ARC themselves, with their own prompts, on files in place of the Hub's."""
    (tmp_path / "lambada_openai.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (tmp_path / "arc_easy").mkdir()
    rows = [
        {"question": "the film", "choices": {"text": ["good", "bad"], "label": ["A", "B"]}, "answerKey": key}
        for key in ("A", "B", "A")
    ]
    (tmp_path / "arc_easy" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = runs.run(
        "evaluate", place / "elastic", "--lm-eval", "lambada_openai,arc_easy", "--lm-eval-data", tmp_path,
        "--size", "M", "--limit", 3, "--json",
    )  # fmt: skip
    assert done.json["examples"] == {"lambada_openai": 3, "arc_easy": 3}
    assert set(done.json["tasks"]["arc_easy"]) >= {"acc", "acc_norm"}
    assert done.json["tasks"]["arc_easy"]["acc"] in (pytest.approx(1 / 3), pytest.approx(2 / 3))


@pytest.mark.slow
def test_what_cannot_be_measured_is_refused(place, tmp_path):
    elastic, data = place / "elastic", ["--lm-eval-data", place / "tasks"]
    runs.run("evaluate", elastic, "--lm-eval", "tiny_word", *data).refused("`tiny_words`?")
    runs.run("evaluate", ARTIFACTS / "classifier", "--lm-eval", "tiny_words", *data).refused("need a decoder")
    runs.run("evaluate", elastic, "--lm-eval", "tiny_words", "--lm-eval-data", tmp_path / "no").refused("no folder")
    runs.run("evaluate", elastic, "--lm-eval", "lambada_openai").refused("`lambada_openai`", "--lm-eval-data")
    runs.run("evaluate", elastic, "--lm-eval", "tiny_words", *data, "--size", "XXL").refused("no size `XXL`")
    (tmp_path / "tiny_words.jsonl").write_text('{"text": "a film"}\n{"text": null}\n')
    (tmp_path / "tiny_words.yaml").write_text((place / "tasks" / "tiny_words.yaml").read_text())
    own = ["--lm-eval", "tiny_words", "--lm-eval-data", tmp_path]
    done = runs.run("evaluate", elastic, *own)
    assert (done.code, done.out) == (1, "")
    assert "error: the harness cannot use the data of `tiny_words`" in done.err
    (tmp_path / "arc_easy").mkdir()
    (tmp_path / "arc_easy" / "train.jsonl").write_text("{}\n")
    runs.run("evaluate", elastic, "--lm-eval", "arc_easy", "--lm-eval-data", tmp_path).refused("split `test`")


@pytest.mark.slow
def test_versions_that_look_for_models_find_one(place):
    from slimformer.integrations.lm_eval import SlimformerLM

    model = SlimformerLM(pretrained=str(place / "elastic"), size="S", batch_size=2)
    assert model.model.config.intermediate_size == 8
    assert model.tokenizer.encode("film") == corpus.tokenizer().encode("film")


def test_wrong_usage_is_refused():
    runs.run("evaluate", "nowhere", "--few-shot", 1).refused("without `--lm-eval`", code=2)
    runs.run("evaluate", "nowhere", "--lm-eval", "a", "--task", "sst2").refused("`--task` is given", code=2)
    runs.run("evaluate", "nowhere", "--lm-eval", "a,,b").refused("empty name", code=2)
    runs.run("evaluate", "nowhere", "--lm-eval", "a", "--few-shot", -1).refused("`--few-shot`", code=2)


def test_without_the_harness_the_extra_is_named(monkeypatch):
    import sys

    from slimformer.integrations.lm_eval import evaluate_with_harness

    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ConfigError, match=r"slimformer\[lm-eval\]"):
        evaluate_with_harness("nowhere", ["lambada_openai"])
