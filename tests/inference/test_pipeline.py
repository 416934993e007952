"""Requests in, answers out: whatever computes, however many at once, from however many threads."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer.artifact import TaskRecord
from slimformer.errors import ArtifactError, CheckpointError, ConfigError, DataError
from slimformer.inference.codec import TaskCodec, TaskRequest
from slimformer.inference.pipeline import Failure, TaskPipeline, open_pipeline
from slimformer.inference.runners import TorchRunner, as_array, run
from slimformer.tasks.features import as_tensors
from slimformer.tasks.kinds import kind_of
from tests import corpus, runs, zoo
from tests.methods.test_every_kind import generated

TEXTS = ["the film was good", "dull", "a very poor plot and a great end but not the cast", "fine"]
#: Kind → requests in every form it takes.
REQUESTS = {
    "classification": ["good", ("good", "bad"), {"text": "good"}, {"text": "good", "text_pair": "bad"}],
    "regression": ["good", {"text": "good", "text_pair": "bad"}],
    "tagging": ["the film was", ["the", "film"], {"tokens": ["the", "film"]}, {"text": "the film"}],
    "multiple-choice": [("the end", ["good", "bad", "fine"]), {"question": "the end", "choices": ["good", "bad"]}],
    "question-answering": [("the end", "the film was good"), {"question": "the end", "context": "a plot " * 60}],
    "language-modelling": ["the [MASK] was [MASK]", {"text": "[MASK]"}],
}
#: Kind → the keys of an answer.
ANSWERS = {
    "classification": {"label", "probability", "scores"},
    "regression": {"value"},
    "tagging": {"tokens", "tags"},
    "multiple-choice": {"index", "choice", "probability", "scores"},
    "question-answering": {"text", "start", "end", "score"},
    "language-modelling": {"fills"},
}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """An artifact of every kind that can be trained."""
    folder = tmp_path_factory.mktemp("pipeline")
    corpus.model_folder(folder / "base")
    for kind in REQUESTS:
        (folder / f"{kind}-data").mkdir()
        done = runs.finetune(folder / "base", kind, generated(kind, folder / f"{kind}-data"), folder / kind, "--quiet")
        assert done.code == 0, done.err
    return folder


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_kind_answers_every_form_of_request(kind, artifacts):
    pipeline = open_pipeline(artifacts / kind)
    answers = pipeline(REQUESTS[kind])
    assert len(answers) == len(REQUESTS[kind])
    for answer in answers:
        assert set(answer) == ANSWERS[kind]
        assert json.loads(json.dumps(answer)) == answer
        assert "\n" not in pipeline.kind.line(answer)
    assert pipeline([]) == []
    # Neither the company of others nor the batch size changes an answer.
    alone = [pipeline([request])[0] for request in REQUESTS[kind]]
    small = TaskPipeline(pipeline.codec, pipeline.runner, batch_size=1)(REQUESTS[kind])
    for one, other, third in zip(answers, alone, small, strict=True):
        assert_near(one, other)
        assert_near(one, third)


def assert_near(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_near(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_near(*pair)
    else:
        assert one == (pytest.approx(other, abs=1e-4) if isinstance(one, float) else other)


def test_probabilities_are_the_models(artifacts):
    loaded = hf.AutoModelForSequenceClassification.from_pretrained(artifacts / "classification").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(artifacts / "classification")
    for text, answer in zip(TEXTS, open_pipeline(artifacts / "classification")(TEXTS), strict=True):
        with torch.no_grad():
            shares = loaded(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
        assert answer["label"] == loaded.config.id2label[int(shares.argmax())]
        assert answer["scores"] == pytest.approx(
            {loaded.config.id2label[index]: float(share) for index, share in enumerate(shares)}, abs=1e-5
        )


def test_masks_are_filled_with_the_likeliest_tokens(artifacts):
    loaded = hf.AutoModelForMaskedLM.from_pretrained(artifacts / "language-modelling").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(artifacts / "language-modelling")
    (answer,) = open_pipeline(artifacts / "language-modelling")(["the [MASK] was [MASK] and"])
    with torch.no_grad():
        logits = loaded(**tokenizer("the [MASK] was [MASK] and", return_tensors="pt")).logits[0]
    for place, fill in zip((2, 4), answer["fills"], strict=True):
        shares, tokens = logits[place].softmax(-1).topk(5)
        assert [each["token"] for each in fill] == [tokenizer.decode([token]) for token in tokens]
        assert [each["probability"] for each in fill] == pytest.approx(shares.tolist(), abs=1e-5)


def test_bad_requests_keep_their_places(artifacts):
    pipeline = open_pipeline(artifacts / "question-answering", max_length=16, batch_size=1)
    contents = [("the end", "a plot"), "no context", ("good " * 20, "a film"), ("the end", "a film")]
    asked = [TaskRequest(content, "f.jsonl", 10 + number) for number, content in enumerate(contents)]
    replies = list(pipeline.stream(iter(asked)))
    assert [isinstance(reply, Failure) for reply in replies] == [False, True, True, False]
    assert replies[1].line == 11
    assert "give a question with its context" in replies[1].error
    assert replies[2] == Failure(
        12,
        "the question has 20 tokens, which is more than half of max_length `16`; raise max_length or shorten the "
        "question",
    )
    with pytest.raises(DataError, match=r"`request` line 1: the question has 20 tokens"):
        pipeline([contents[2]])


def chunks_of(pipeline, requests, monkeypatch, ahead=None):
    """The numbers of requests that were answered together."""
    sizes, answer = [], TaskPipeline._answer

    def counted(self, encoded):
        sizes.append(len(encoded.split))
        return answer(self, encoded)

    monkeypatch.setattr(TaskPipeline, "_answer", counted)
    replies = list(pipeline.stream((TaskRequest(each, line=n) for n, each in enumerate(requests, start=1)), ahead))
    assert not any(isinstance(reply, Failure) for reply in replies)
    assert len(replies) == sum(sizes)
    return sizes


@pytest.mark.slow
def test_long_texts_are_answered_few_at_a_time(artifacts, monkeypatch):
    pipeline = open_pipeline(artifacts / "classification", batch_size=8)
    long = "good " * 100_000
    assert chunks_of(pipeline, [*["good"] * 5, *[long] * 9, "fine"], monkeypatch) == [9, 4, 2]
    longest = "good " * 209_000  # a text may have 2^20 characters, all of a chunk twice as many
    assert chunks_of(pipeline, [longest, longest, longest, "fine"], monkeypatch) == [2, 2]


def test_choices_count_as_many_texts_as_they_are(artifacts, monkeypatch):
    """All questions of a chunk are filled up to as many choices as the widest has."""
    pipeline = open_pipeline(artifacts / "multiple-choice", batch_size=2)
    narrow, wide = ("the end", ["good", "bad"]), ("the end", ["good", "bad"] * 10)
    assert chunks_of(pipeline, [narrow] * 20, monkeypatch) == [16, 4]
    assert chunks_of(pipeline, [narrow, narrow, wide, narrow], monkeypatch) == [2, 1, 1]


def test_fewer_can_be_read_ahead(artifacts, monkeypatch):
    pipeline = open_pipeline(artifacts / "classification", batch_size=8)
    assert chunks_of(pipeline, TEXTS, monkeypatch, ahead=1) == [1, 1, 1, 1]
    assert chunks_of(pipeline, TEXTS, monkeypatch, ahead=3) == [3, 1]


def test_half_characters_are_refused_wherever_they_stand(artifacts):
    pipeline = open_pipeline(artifacts / "classification")
    half = "\ud800"
    asked = ["good", f"bad {half}", {"text": half}, {"text": "good", half: 1}, {half: "good"}, ["good", half], "fine"]
    replies = list(pipeline.stream(TaskRequest(each, line=n) for n, each in enumerate(asked, start=1)))
    assert [isinstance(reply, Failure) for reply in replies] == [False, True, True, True, True, True, False]
    for reply in replies[1:-1]:
        assert "no Unicode" in reply.error
        reply.error.encode()


@pytest.mark.parametrize(
    ("trained", "asked"),
    [("classification", "regression"), ("regression", "classification"), ("classification", "multi-label")],
)
def test_a_head_of_the_right_class_whose_outputs_mean_something_else_is_refused(trained, asked, artifacts, tmp_path):
    with pytest.raises(CheckpointError, match=f"mean something else than task `{asked}` asks for; leave out `--task`"):
        open_pipeline(artifacts / trained, task=asked)
    done = runs.run("evaluate", artifacts / trained, "--task", asked, "--data", tmp_path / "nowhere")
    done.refused(f"mean something else than task `{asked}`")


def test_chunks_are_all_that_is_read_ahead(artifacts):
    pipeline = open_pipeline(artifacts / "classification", batch_size=2)
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield TaskRequest(TEXTS[taken % 4], line=taken)

    replies = pipeline.stream(endless())
    for _ in range(5):
        next(replies)
    assert taken == 32


def test_an_engine_without_torch_can_be_put_in(artifacts):
    """Everything but the runner is NumPy: the same codec around a function on arrays."""
    opened = open_pipeline(artifacts / "tagging")
    seen = []

    def engine(batch):
        assert all(isinstance(array, np.ndarray) for array in batch.values())
        seen.append(batch["input_ids"].shape)
        logits = np.zeros((*batch["input_ids"].shape, 3), np.float32)
        logits[..., 1] = 1
        return opened.kind.outputs({"logits": logits}, batch)

    (answer,) = TaskPipeline(opened.codec, engine)(["the film was"])
    assert answer == {"tokens": ["the", "film", "was"], "tags": [opened.codec.labels[1]] * 3}
    assert seen == [(1, 5)]


@pytest.mark.parametrize("name", ["language-modelling", "last-word", "retrieval"])
def test_outputs_are_reduced_alike_in_numpy_and_torch(name):
    draw = np.random.default_rng(0)
    batch = {
        "labels": np.where(draw.random((3, 7)) < 0.5, draw.integers(0, 11, (3, 7)), -100),
        "attention_mask": (np.arange(7) < np.array([[7], [4], [2]])).astype(np.int64),
    }
    outputs = {"logits": draw.normal(size=(3, 7, 11)), "last_hidden_state": draw.normal(size=(3, 7, 5))}
    outputs = {key: value.astype(np.float32) for key, value in outputs.items()}
    kind = kind_of(name)
    ours = kind.outputs(outputs, batch)
    theirs = kind.outputs({key: torch.from_numpy(value) for key, value in outputs.items()}, as_tensors(batch))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        np.testing.assert_allclose(value, as_array(theirs[key]), rtol=1e-5, atol=1e-5)


def test_threads_share_a_pipeline(artifacts):
    """Three pipelines on one tokenizer, cutting at other lengths, asked from eight threads."""
    whole = open_pipeline(artifacts / "tagging")
    short = {
        length: TaskPipeline(
            TaskCodec(whole.kind, whole.codec.processor, length, whole.codec.labels), whole.runner, batch_size=4
        )
        for length in (5, 8, 20)
    }
    text = " ".join(corpus.WORDS)
    expected = {length: pipeline([text] * 3) for length, pipeline in short.items()}
    assert {length: sum(tag is not None for tag in answers[0]["tags"]) for length, answers in expected.items()} == {
        5: 3,
        8: 6,
        20: 18,
    }

    def ask(number):
        length = (5, 8, 20)[number % 3]
        return all(short[length]([text] * 3) == expected[length] for _ in range(15))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(24)))


def test_columns_of_the_tasks_own_data(artifacts, tmp_path):
    rows = ["words\tverdict", *(f"{text}\t{number % 2}" for number, text in enumerate(TEXTS * 3))]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    flags = ["--text-column", "words", "--label-column", "verdict"]
    assert runs.finetune(artifacts / "base", "classification", tmp_path, tmp_path / "out", *flags).code == 0
    pipeline = open_pipeline(tmp_path / "out")
    assert pipeline([{"words": "good"}]) == pipeline([{"text": "good"}]) == pipeline(["good"])
    # Names that data often have are known too, while there is one way to read them.
    assert pipeline([{"sentence1": "good", "sentence2": "bad"}]) == pipeline([("good", "bad")])
    with pytest.raises(DataError, match="a request for classification reads"):
        pipeline([{"sentence": "good", "review": "bad"}])


def test_plain_checkpoints_answer_by_their_class(tmp_path):
    heads = {
        hf.BertForSequenceClassification: ("classification", {"num_labels": 3}),
        hf.BertForTokenClassification: ("tagging", {"id2label": {0: "O", 1: "B-X"}}),
        hf.BertForQuestionAnswering: ("question-answering", {}),
        hf.BertForMultipleChoice: ("multiple-choice", {}),
        hf.BertForMaskedLM: ("language-modelling", {}),
    }
    for head, (kind, settings) in heads.items():
        pipeline = open_pipeline(runs.headed(tmp_path / kind, head, **settings))
        assert pipeline.kind.name == kind
        assert set(pipeline(REQUESTS[kind][:1])[0]) == ANSWERS[kind]
    number = runs.headed(tmp_path / "number", hf.BertForSequenceClassification, num_labels=1)
    assert set(open_pipeline(number)(["good"])[0]) == {"value"}
    assert open_pipeline(tmp_path / "tagging")(["good film"])[0]["tags"][0] in ("O", "B-X")
    assert set(open_pipeline(tmp_path / "classification")(["good"])[0]["scores"]) == {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_vectors_of_any_model(artifacts):
    pipeline = open_pipeline(artifacts / "base")
    (answer,) = pipeline(["the film was good"])
    model = hf.AutoModel.from_pretrained(artifacts / "base").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(artifacts / "base")
    with torch.no_grad():
        expected = model(**tokenizer("the film was good", return_tensors="pt")).last_hidden_state[0].mean(0)
    assert answer["embedding"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert len(open_pipeline(artifacts / "classification", task="retrieval")(["good"])[0]["embedding"]) == 32
    with pytest.raises(CheckpointError, match="has no trained head for task `tagging`"):
        open_pipeline(artifacts / "classification", task="tagging")


def test_a_sentence_encoder_answers_as_it_was_made():
    pipeline = open_pipeline("minilm")
    near, other, far = (
        np.array(answer["embedding"]) for answer in pipeline(["a fine film", "a good movie", "tax law of 1984"])
    )
    assert np.linalg.norm(near) == pytest.approx(1, abs=1e-5)
    assert near @ other > 0.6 > 0.2 > near @ far
    assert pipeline.codec.max_length == 256


def test_decoders_go_on_with_a_text(tmp_path):
    folder = runs.decoder(tmp_path / "decoder")
    pipeline = open_pipeline(folder, max_new_tokens=5)
    model = hf.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    asked = ["the film was", "a very good plot and the cast"]
    for text, answer in zip(asked, pipeline(asked), strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :-1]  # without the separator after it
        for _ in range(5):
            with torch.no_grad():
                ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        assert answer == {"text": tokenizer.decode(ids[0, -5:], skip_special_tokens=True)}
    with pytest.raises(ConfigError, match="generates no text; leave it out"):
        open_pipeline(runs.headed(tmp_path / "masked", hf.BertForMaskedLM), max_new_tokens=3)
    long = open_pipeline(folder, max_new_tokens=60)
    assert len(long.codec.encode([" ".join(corpus.WORDS)]).features[0]["input_ids"]) == 4  # of 64 positions
    with pytest.raises(ConfigError, match="is `64`, and text and answer have 64 tokens together; give less"):
        open_pipeline(folder, max_new_tokens=64)
    assert open_pipeline(folder).kind.new_tokens == 32  # half of so small a model


def test_real_stories(stories):
    (answer,) = open_pipeline(stories, max_new_tokens=12)(["Once upon a time, there was a little"])
    assert answer["text"].startswith("girl")


def test_images(tmp_path):
    from PIL import Image

    folder = runs.viewer(tmp_path / "viewer")
    image = Image.new("RGB", (40, 30), (200, 10, 10))
    image.save(tmp_path / "red.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    pipeline = open_pipeline(folder)
    assert pipeline.kind.name == "image-retrieval"
    path, held, named = pipeline([str(tmp_path / "red.png"), image, {"image": str(tmp_path / "red.png")}])
    assert len(path["embedding"]) == 32
    assert_near(path, held)
    assert_near(path, named)
    for wrong, words in (("broken.png", "is not an image"), ("none.png", "no image at")):
        with pytest.raises(DataError, match=words):
            pipeline([str(tmp_path / wrong)])
    hf.ViTForImageClassification.from_pretrained(folder, num_labels=2).save_pretrained(tmp_path / "headed")
    (tmp_path / "headed" / "preprocessor_config.json").write_bytes((folder / "preprocessor_config.json").read_bytes())
    assert set(open_pipeline(tmp_path / "headed")([image])[0]["scores"]) == {"LABEL_0", "LABEL_1"}


def test_what_nothing_answers_for(tmp_path):
    zoo.build_headed("vit_mae").save_pretrained(tmp_path)
    runs.viewer(tmp_path / "other")
    (tmp_path / "preprocessor_config.json").write_bytes((tmp_path / "other/preprocessor_config.json").read_bytes())
    with pytest.raises(CheckpointError, match="which no kind of task answers for; name one with `--task`, such as `im"):
        open_pipeline(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "`--batch-size` is `0`"),
        ({"max_length": 0}, "`--max-length` is `0`"),
        ({"max_length": 65}, "the model has 64 positions"),
        ({"max_new_tokens": 3}, "generates no text"),
    ],
)
def test_settings_that_make_no_sense(settings, words, artifacts):
    with pytest.raises(ConfigError, match=words):
        open_pipeline(artifacts / "classification", **settings)


def test_labels_do_not_reach_the_model(artifacts):
    """They only serve to reduce the outputs, so nothing is computed for a loss."""
    kind = kind_of("language-modelling", {"objective": "masked"})
    model = hf.AutoModelForMaskedLM.from_pretrained(artifacts / "language-modelling").eval()
    given = {}
    model.register_forward_pre_hook(lambda module, args, kwargs: given.update(kwargs), with_kwargs=True)
    ids = np.array([[5, 6, 7]])
    found = TorchRunner(model, kind)({"input_ids": ids, "attention_mask": ids * 0 + 1, "labels": ids})
    assert set(given) == {"input_ids", "attention_mask"}
    assert found["likelihoods"].shape == (1, 3)


def test_batches_are_sorted_by_length_and_come_back_in_order(artifacts):
    codec = open_pipeline(artifacts / "tagging").codec
    encoded = codec.encode([" ".join(["good"] * count) for count in (1, 5, 3, 2, 4)])
    shapes = []

    def runner(batch):
        shapes.append(batch["input_ids"].shape)
        return {"lengths": batch["attention_mask"].sum(1)}

    found = run(encoded.features, codec.collate, runner, 2)
    assert shapes == [(2, 7), (2, 5), (1, 3)]
    assert found["lengths"].tolist() == [3, 7, 5, 4, 6]


@pytest.mark.slow
def test_inference_does_not_import_training(artifacts, tmp_path):
    """Evaluating and predicting, whole commands, without a line of the training code."""
    code = (
        "import sys\nfrom slimformer.cli import main\nmain(sys.argv[1:])\n"
        "loaded = [name for name in sys.modules if name.startswith(('slimformer.train', 'slimformer.methods'))]\n"
        "assert not loaded, loaded"
    )
    data = artifacts / "classification-data"
    for arguments in (
        ["evaluate", artifacts / "classification", "--data", data],
        ["predict", artifacts / "classification", "good", "--json"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "classification", "labels": ["yes", "no"]},
        {"kind": "classification", "labels": ["no", "yes", "perhaps"]},
        {"kind": "regression"},
    ],
)
def test_a_manifest_that_says_otherwise_than_the_config_is_not_believed(record):
    config = hf.BertConfig(id2label={0: "no", 1: "yes"}, problem_type="single_label_classification")
    with pytest.raises(ArtifactError, match="by its manifest the artifact is for"):
        TaskCodec.of_record(TaskRecord(name="film", **record), corpus.tokenizer(), config)
