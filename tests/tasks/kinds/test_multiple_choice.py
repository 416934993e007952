from __future__ import annotations

import numpy as np
import pytest

from slimformer.errors import DataError
from slimformer.tasks import get_task

LINES = [
    '{"question": "one?", "choices": ["a", "bb", "ccc"], "answer": 2}',
    '{"question": "two?", "choices": ["a", "b"], "answer": "A"}',
    '{"question": "three?", "choices": ["up", "down"], "answer": "down"}',
]


def load(path, **options):
    return get_task("multiple-choice").load(path, ["dev"], **options)


def test_answers_by_number_letter_and_text(write):
    data = load(write("dev.jsonl", "\n".join(LINES)))
    assert [row["label"] for row in data["dev"]] == [2, 0, 1]
    assert data.config_kwargs() == {}


def test_a_column_for_each_choice(write):
    path = write("dev.csv", "question,A,B,C,answer\nwhat?,x,y,z,2\nwho?,x,y,,B\n")
    assert list(load(path)["dev"]) == [
        {"question": "what?", "choices": ["x", "y", "z"], "label": 1},
        {"question": "who?", "choices": ["x", "y"], "label": 1},
    ]
    numbered = write("dev.csv", "prompt,choice0,choice1,label\nwhat?,x,y,1\n")
    assert load(numbered)["dev"][0]["label"] == 1


def test_questions_with_fewer_choices_are_filled_up_and_never_measured_on_them(write, pieces):
    data = load(write("dev.jsonl", "\n".join(LINES)))
    features = data.prepare("dev", pieces)
    batch = data.collator(pieces)(features[:])
    assert batch["input_ids"].shape[:2] == (3, 3)
    assert batch["labels"].tolist() == [2, 0, 1]
    assert pieces.decode(batch["input_ids"][0, 1]).startswith("[CLS] o ##n ##e ? [SEP] b ##b [SEP] [PAD]")
    # The empty choice has the highest score in the second and third question.
    logits = np.array([[0, 0, 1], [1, 0, 9], [0, 1, 9]])
    assert data.compute_metrics("dev", features, logits) == {"accuracy": 1.0}
    assert logits[1, 2] == 9


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"question": "q", "choices": ["a"], "answer": 0}',
            r"dev.jsonl` line 1: 1 choices; a question needs",
        ),
        ('{"question": "q", "choices": ["a", ""], "answer": 0}', r"dev.jsonl` line 1: choice 2 is empty"),
        ('{"question": "q", "choices": ["a", "b"], "answer": 2}', r"line 1: answer `2` is none of the 2 choices"),
        ('{"question": "q", "choices": ["a", "b"], "answer": "E"}', r"line 1: answer `E` is none of the 2 choices"),
        ('{"question": "q", "choices": "a, b", "answer": 0}', r"line 1: `choices` holds `a, b`; give a list"),
        ('{"question": "q", "answers": ["a", "b"], "answer": 0}', "does not tell which columns hold the choices"),
        ('{"question": " ", "choices": ["a", "b"], "answer": 0}', "line 1: the text in column `question` is empty"),
    ],
)
def test_rows_are_checked(write, line, message):
    with pytest.raises(DataError, match=message):
        load(write("dev.jsonl", line))


def test_the_layout_of_the_hub(write):
    line = '{"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}'
    assert load(write("dev.jsonl", line))["dev"][0] == {"question": "q", "choices": ["x", "y"], "label": 1}
