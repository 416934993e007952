"""Answers to questions beside a slow search over the logits of torch; Transformers 5 has no such pipeline to ask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer.errors import ConfigError, DataError, SlimformerError
from slimformer.runtime.model import NativeModel
from slimformer.runtime.native import is_built
from tests import runs

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

CONTEXT = (
    "The unbelievable film, shot in Ouagadougou, was made by two sisters; critics called it a tokenization of grief."
)
ASKED = [("Where was it shot?", CONTEXT), ("Who?", "by two sisters"), ("What did critics say of it", CONTEXT * 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = runs.reader(tmp_path_factory.mktemp("answers"))
    torch.manual_seed(3)
    model = hf.BertForQuestionAnswering(hf.AutoConfig.from_pretrained(folder))
    torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight, std=0.5)
    torch.nn.init.normal_(model.qa_outputs.weight, std=0.5)
    model.save_pretrained(folder)
    return folder


def searched(folder, question, context, length, most, *, align=True, top_k=1):
    """Every span of every window with its score, one by one; the best of each, those that say the same put together."""
    model = hf.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    read = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=length,
        stride={384: 128, 40: 16}[length],
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=True,
        return_tensors="pt",
    )
    offsets = read.pop("offset_mapping")
    read.pop("overflow_to_sample_mapping")
    with torch.inference_mode():
        outputs = model(**read)
    answers, nothing = {}, 1.0
    for window in range(len(offsets)):
        parts = read.encodings[window].sequence_ids
        usable = [n for n, part in enumerate(parts) if part == 1]
        shares = [
            np.exp(np.array([logits[window][n] for n in (0, *usable)], np.float64))
            for logits in (outputs.start_logits, outputs.end_logits)
        ]
        starts, ends = (dict(zip((0, *usable), each / each.sum(), strict=True)) for each in shares)
        nothing = min(nothing, starts[0] * ends[0])
        spans = []
        for start in usable:
            for end in (n for n in usable if start <= n < start + most):
                first, last = int(offsets[window][start][0]), int(offsets[window][end][1])
                while align and first and context[first - 1].isalnum() and context[first].isalnum():
                    first -= 1
                while align and last < len(context) and context[last - 1].isalnum() and context[last].isalnum():
                    last += 1
                span = {"score": starts[start] * ends[end], "start": first, "end": last, "answer": context[first:last]}
                spans.append(span)
        spans.sort(key=lambda each: -each["score"])
        for span in spans[: 2 * top_k + 10 if align else top_k]:
            answers.setdefault(span["answer"].lower(), {**span, "score": 0})["score"] += span["score"]
    return sorted(answers.values(), key=lambda each: -each["score"]), nothing


def check_alike(answer, expected):
    assert list(answer) == ["score", "start", "end", "answer"]
    assert answer["score"] == pytest.approx(expected["score"], rel=1e-3)
    assert {**answer, "score": 0} == {**expected, "score": 0}


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("length", [None, 40])
@pytest.mark.parametrize("most", [15, 2])
def test_the_best_span_is_the_one_that_a_search_finds(folder, align, length, most):
    native = NativeModel(folder, max_length=length)
    assert native.max_length == (length or 384)
    answers = native(ASKED, max_answer_len=most, align_to_words=align, batch_size=2)
    for answer, (question, context) in zip(answers, ASKED, strict=True):
        spans, _ = searched(folder, question, context, native.max_length, most, align=align)
        check_alike(answer, spans[0])


def test_several_answers_are_the_best_ones(folder):
    question, context = ASKED[2]
    spans, nothing = searched(folder, question, context, 384, 15, top_k=4)
    native = NativeModel(folder)
    answers = native({"question": question, "context": context}, top_k=4)
    assert len(answers) == 4
    for answer, expected in zip(answers, spans, strict=False):
        check_alike(answer, expected)
    every = native(question=question, context=context, top_k=1000, handle_impossible_answer=True)
    (impossible,) = [answer for answer in every if answer["answer"] == ""]
    assert impossible["score"] == pytest.approx(nothing, rel=1e-3)


def test_questions_are_asked_in_every_form(folder):
    native = NativeModel(folder)
    question, context = ASKED[0]
    alone = native((question, context))
    assert alone == native({"question": question, "context": context}) == native(question=question, context=context)
    several = native([{"question": question, "context": context}, ASKED[1]])
    assert several == native([ASKED[0], ASKED[1]])
    assert several[0] == pytest.approx(alone)
    assert native(question=["Where?", "Who?"], context=context) == native([("Where?", context), ("Who?", context)])


def test_what_is_no_question_is_refused(folder):
    native = NativeModel(folder, max_length=40)
    for call, error, words in (
        (lambda: native("where"), DataError, "no question with its context"),
        (lambda: native([("where",)]), DataError, "no question with its context"),
        (lambda: native(("", "there")), DataError, "no question with its context"),
        (lambda: native(question=["a", "b"], context=["c"]), DataError, "2 questions and 1 contexts"),
        (lambda: native(("so " * 30, "there")), DataError, "has 30 tokens, and at most 20 of the 40"),
        (lambda: native(("so " * 500, "What?")), DataError, "has 500 tokens, and at most 20 of the 40"),
        (lambda: native(("\ud800", "there")), DataError, "fails at one of the texts"),
        (lambda: native(ASKED[1], top_k=None), SlimformerError, "top-k` is `None`"),
        (lambda: native(ASKED[1], max_answer_len=0), SlimformerError, "max-answer-len` is `0`"),
        (lambda: native(ASKED[1], doc_stride=5), ConfigError, "`doc_stride` is `5`"),
        (lambda: native.encode("so"), ConfigError, "ask it with `predict`"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_a_window_with_no_room_for_a_context_is_refused(folder):
    for length, question, most in ((4, "so", 0), (5, "so so", 1), (6, "so so so", 2)):
        with pytest.raises(DataError, match=f"and at most {most} of the {length} .* `max_length`"):
            NativeModel(folder, max_length=length)((question, "there"))
    assert NativeModel(folder, max_length=6)(("so so", "there"))["answer"] == "there"


def test_what_is_given_by_name_is_checked(folder):
    native = NativeModel(folder)
    for call, error, words in (
        (lambda: native(question="Q", context=5), DataError, "`context` is `5`; give a text or a list"),
        (lambda: native(question=5, context="so"), DataError, "`question` is `5`; give a text or a list"),
        (lambda: native(question=["Q"], context=[None]), DataError, r"`context` is `\[None\]`; give a text or a list"),
        (lambda: native(question="Q", context={"so": 1}), DataError, "`context` is `{'so': 1}`; give a text"),
        (lambda: native(question=[], context="so"), DataError, r"`question` is `\[\]`; give a text or a list"),
        (lambda: native(question="Q"), ConfigError, "`question` is `Q` and there is no `context`; give both"),
        (lambda: native(context="so"), ConfigError, "`context` is `so` and there is no `question`; give both"),
        (lambda: native(("a", "b"), question="Q", context="so"), ConfigError, "`question` is `Q` beside .*; leave one"),
        (lambda: native(("a", "b"), context="so"), ConfigError, "`context` is `so` beside .*; leave one"),
    ):
        with pytest.raises(error, match=words):
            call()
