"""No way of asking a model has state that threads share: whoever asks meanwhile, the answers are the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

import slimformer
from slimformer.bank import MaskBank
from slimformer.inference.codec import TaskRequest
from slimformer.inference.evaluation import predict
from slimformer.inference.pipeline import open_pipeline
from slimformer.tasks import get_task
from tests import corpus
from tests.test_old_artifacts import ARTIFACTS

THREADS, ROUNDS = 6, 5
LENGTHS = (6, 11, 30)
TEXTS = [" ".join(corpus.WORDS), "a dull plot", "the film was good and the cast was very fine but not the end"]
#: An artifact of each kind → what it is asked; texts are longer than most of the lengths.
REQUESTS = {
    "classifier": TEXTS,
    "mask-regression": TEXTS,
    "mask-tagging": TEXTS,
    "mask-multiple-choice": [(TEXTS[0], ["good", TEXTS[2]]), (TEXTS[1], ["dull", "fine"])],
    "mask-question-answering": [("a plot", TEXTS[0]), ("the end", TEXTS[2])],
    "sentence-encoder": TEXTS,
    "decoder": TEXTS,
}


def same_under_threads(*asks):
    """Whether each of some calls gives in many threads at once what it gives alone."""
    alone = [ask() for ask in asks]
    assert len({repr(answer) for answer in alone}) == len(alone), "calls that answer alike would hide a mix-up"
    start = threading.Barrier(THREADS)

    def run(number):
        start.wait()
        numbers = [(number + turn) % len(asks) for turn in range(ROUNDS * len(asks))]
        return [each for each in numbers if repr(asks[each]()) != repr(alone[each])]

    with ThreadPoolExecutor(THREADS) as pool:
        return not any(pool.map(run, range(THREADS)))


@pytest.mark.parametrize("name", REQUESTS)
def test_pipelines_of_every_kind(name):
    """Three lengths on one model and one tokenizer, all at once and request by request."""
    whole = open_pipeline(ARTIFACTS / name, max_new_tokens=4 if name == "decoder" else None)
    lengths = (10, 20, 30) if name in ("decoder", "mask-question-answering") else LENGTHS
    pipelines = [replace(whole, codec=replace(whole.codec, max_length=length), batch_size=2) for length in lengths]
    asks = [lambda pipeline=pipeline: pipeline(REQUESTS[name]) for pipeline in pipelines]
    assert same_under_threads(*asks)


@pytest.mark.parametrize("name", ["classifier", "mask-tagging"])
def test_predicting_line_by_line(name):
    requests = [TaskRequest(text, line=number) for number, text in enumerate(TEXTS, start=1)]
    pipelines = [open_pipeline(ARTIFACTS / name, max_length=length, batch_size=2) for length in LENGTHS]
    assert same_under_threads(*(lambda pipeline=pipeline: list(pipeline.stream(requests)) for pipeline in pipelines))


def test_images(tmp_path):
    from PIL import Image

    paths = []
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (9 + number, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        paths.append(str(tmp_path / f"{number}.png"))
    pipeline = open_pipeline(ARTIFACTS / "image-classifier")
    assert same_under_threads(*(lambda path=path: pipeline([path]) for path in paths))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Masks on one base that cut texts at other lengths."""
    folder = tmp_path_factory.mktemp("threads")
    corpus.model_folder(folder / "base")
    data = corpus.data_folder(folder / "data")
    for seed, length in enumerate(LENGTHS):
        slimformer.mask(
            model=folder / "base",
            task="classification",
            data=data,
            out=folder / str(length),
            max_length=length,
            seed=seed,
            **{"max_steps": 2, "batch_size": 8, "lr": 0.05, "blocks": "0-", "quiet": True},
        )
    return folder


@pytest.fixture(params=[0, 1 << 30], ids=["on the fly", "kept"])
def bank(request, shelf):
    bank = MaskBank(memory_limit=request.param)
    for length in LENGTHS:
        bank.add(str(length), shelf / str(length))
    return bank


def test_a_bank_asked_for_one_task_or_all(bank):
    """Each task cuts at a length of its own, with the one tokenizer of the base."""
    one = [lambda name=name: bank.logits({name: TEXTS}) for name in bank.tasks]
    mixed = [lambda: bank.predict(dict.fromkeys(bank.tasks, TEXTS), batch_size=4)]
    assert same_under_threads(*one, *mixed)


def test_models_that_a_bank_gives_out(bank):
    batch = corpus.tokenizer()(TEXTS, padding=True, return_tensors="pt")

    def ask(name):
        with torch.inference_mode():
            return bank.use(name)(**batch).logits.tolist()

    assert same_under_threads(*(lambda name=name: ask(name) for name in bank.tasks))


def test_evaluation(shelf):
    """What `evaluate` runs, on one model whose splits were cut at other lengths."""
    loaded = slimformer.load(shelf / str(LENGTHS[-1]))
    data = get_task("classification").load(shelf / "data", ["dev"], labels=loaded.manifest.task.labels)
    features = [data.prepare("dev", loaded.processor, length) for length in LENGTHS]
    ask = [lambda each=each: predict(loaded.model, data, each, loaded.processor, 8).tolist() for each in features]
    assert same_under_threads(*ask)
