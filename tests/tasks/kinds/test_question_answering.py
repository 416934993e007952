from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.kinds.question_answering import QuestionAnswering
from slimformer.tasks.splits import Split

WORDS = ["red", "green", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "house"]


def question(context, begin, end, text="where?"):
    return {"id": "q", "question": text, "context": context, "answers": [context[begin:end]], "starts": [begin]}


def pointing_at_targets(features):
    length = max(len(item["input_ids"]) for item in features)
    starts, ends = np.zeros((len(features), length)), np.zeros((len(features), length))
    for row, item in enumerate(features):
        starts[row, item["start_positions"]] = ends[row, item["end_positions"]] = 5.0
    return starts, ends


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60), st.data())
def test_answers_are_recovered_from_windows(pieces, words, data):
    context = " ".join(words)
    bounds = np.cumsum([0, *(len(word) + 1 for word in words)])
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(first + 1, len(words) - 1)))
    split = Split([question(context, int(bounds[first]), int(bounds[last + 1]) - 1)], [("f", 1)])
    kind = QuestionAnswering()
    features = kind.features(split, pieces, 40, 0)
    targets = [item["start_positions"] for item in features]
    assert any(targets), "some window holds the whole answer"
    assert kind.answers(split, features, pointing_at_targets(features)) == split[0]["answers"]


def test_windows_overlap_and_only_context_can_be_the_answer(pieces):
    context = " ".join(["cat"] * 40)
    split = Split([question(context, 0, 3)], [("f", 1)])
    features = QuestionAnswering().features(split, pieces, 40, 0)
    assert len(features) > 1
    covered = [window.offsets[window.offsets[:, 0] >= 0] for window in features.extra]
    assert all(one[-1, 0] > other[0, 0] for one, other in itertools.pairwise(covered))
    assert {window.null for window in features.extra} == {0}
    assert [item["start_positions"] > 0 for item in features] == [True] + [False] * (len(features) - 1)


def squad(write, *questions, name="dev.json"):
    article = {"title": "t", "paragraphs": [{"context": "The cat sat on the mat.", "qas": list(questions)}]}
    return write(name, json.dumps({"data": [article]}))


ANSWERABLE = {"id": "1", "question": "who?", "answers": [{"text": "cat", "answer_start": 4}]}
IMPOSSIBLE = {"id": "2", "question": "why?", "answers": [], "is_impossible": True}


def test_no_answer_wins_when_its_score_is_higher(write, pieces):
    data = get_task("question-answering").load(squad(write, ANSWERABLE, IMPOSSIBLE), ["dev"])
    features = data.prepare("dev", pieces)
    predictions = pointing_at_targets(features)
    assert data.kind.answers(data["dev"], features, predictions) == ["cat", ""]
    assert data.compute_metrics("dev", features, predictions) == {"f1": 1.0, "exact_match": 1.0}
    # At equal scores an answer is given.
    assert data.kind.answers(data["dev"], features, tuple(scores * 0 for scores in predictions))[1] != ""


def test_where_every_question_has_an_answer_one_is_given(write, pieces):
    data = get_task("question-answering").load(squad(write, ANSWERABLE), ["dev"])
    features = data.prepare("dev", pieces)
    starts, ends = pointing_at_targets(features)
    starts[:, 0] = ends[:, 0] = 100
    assert data.kind.answers(data["dev"], features, (starts, ends)) == ["cat"]
    assert data.compute_metrics("dev", features, (starts, ends))["exact_match"] == 1.0


def test_the_least_null_score_of_the_windows_counts():
    from slimformer.tasks.kinds.question_answering import Window, best_span

    offsets = np.array([[-1, -1], [0, 3], [4, 7]], np.int32)
    sure = (Window(0, offsets, 0), np.array([0.0, 3, 0]), np.array([0.0, 0, 3]))
    unsure = (Window(0, offsets, 0), np.array([9.0, 0, 0]), np.array([9.0, 0, 0]))
    span = best_span([sure, unsure], may_be_null=True)
    assert (span.start, span.end, span.score) == (0, 7, 6.0)
    assert best_span([unsure], may_be_null=True) is None
    backwards = (Window(0, offsets, 0), np.array([0.0, 0, 3]), np.array([0.0, 3, 0]))
    assert best_span([backwards], may_be_null=False).score == 3.0


def test_flat_rows_as_jsonl(write):
    row = {"id": "7", "question": "who?", "context": "The cat", "answers": {"text": ["cat"], "answer_start": [4]}}
    data = get_task("question-answering").load(write("dev.jsonl", json.dumps(row)), ["dev"])
    assert data["dev"][0]["starts"] == [4]


def test_questions_on_one_context_are_held_out_together(write):
    rows = [
        {"question": f"q{n}", "context": f"context {n % 10}", "answers": {"text": [], "answer_start": []}}
        for n in range(40)
    ]
    data = get_task("question-answering").load(write("all.jsonl", "\n".join(map(json.dumps, rows))))
    assert (len(data["train"]), len(data["dev"])) == (36, 4)
    assert len({row["context"] for row in data["dev"]}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": [{"text": "cat", "answer_start": 5}]}, "`cat` at character 5, where the context reads `at `"),
        ({"answers": [{"text": "", "answer_start": 0}]}, "question `1` has the answer `` at character 0"),
        ({"answers": [{"text": "cat", "answer_start": -3}]}, "question `1` has 1 answers but starts"),
        ({"question": ""}, "the text in column `question` is empty"),
    ],
)  # fmt: skip
def test_answers_are_checked_against_the_context(write, change, message):
    with pytest.raises(DataError, match=message):
        get_task("question-answering").load(squad(write, {**ANSWERABLE, **change}), ["dev"])


def test_a_question_that_fills_the_window_is_refused(write, pieces):
    data = get_task("question-answering").load(squad(write, {**ANSWERABLE, "question": "x" * 30}), ["dev"])
    with pytest.raises(DataError, match="question `1` has 30 tokens, which is more than half of max_length `40`"):
        data.prepare("dev", pieces, max_length=40)


def test_real_answers_survive_a_real_tokenizer(shared_data, minilm):
    data = get_task("xquad").load(shared_data / "xquad", ["dev"], limit=60, language="de")
    features = data.prepare("dev", minilm, max_length=128)
    assert len(features) > 60
    assert data.compute_metrics("dev", features, pointing_at_targets(features))["f1"] > 0.95
