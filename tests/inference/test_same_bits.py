"""The native engine through the ways users ask it: the bits of an answer follow from its text alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as hf

import slimformer
from slimformer.artifact import Step
from slimformer.inference.pipeline import open_pipeline
from slimformer.runtime.model import NativeModel
from slimformer.runtime.native import is_built
from tests import corpus, zoo
from tests.parameters import slow
from tests.runtime.exact.encoder import ExactEncoder
from tests.runtime.test_encoder import images, quantized, same_bits

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

#: Sixteen texts of 1 to 45 words, no two of one length.
TEXTS = [" ".join((corpus.WORDS * 3)[number : number + 1 + 3 * number]) for number in range(16)]
LABELS = ["bad", "good", "neither"]
MODELS = slow(
    [(family, view) for family in ("bert", "distilbert", "mpnet", "modernbert") for view in ("ternary", "float32")],
    only=[("distilbert", "ternary"), ("distilbert", "float32"), ("mpnet", "float32"), ("modernbert", "float32")],
)


def classifier(folder, family, view, head=hf.AutoModelForSequenceClassification):
    config = zoo.CONFIGS[family]()
    config.id2label, config.pad_token_id = dict(enumerate(LABELS)), 0
    torch.manual_seed(0)
    model = zoo.enliven(head.from_config(config)).eval()
    if view != "float32":
        quantized(model, view)
    task = {"name": "reviews", "kind": "classification", "labels": LABELS}
    labelled = {"task": task} if head is hf.AutoModelForSequenceClassification else {}
    slimformer.save(folder, model, processor=corpus.tokenizer(), step=Step(method="quantize"), **labelled)
    return folder


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with what the reference says of the texts, by family and format."""
    kept = {}

    def open_(family, view):
        if (family, view) not in kept:
            folder = classifier(tmp_path_factory.mktemp("models") / family, family, view)
            tokenizer, reference = corpus.tokenizer(), ExactEncoder(folder)
            kept[family, view] = folder, np.concatenate([reference.run(tokenizer(text).input_ids) for text in TEXTS])
        return kept[family, view]

    return open_


@pytest.mark.parametrize(("family", "view"), MODELS)
def test_padding_and_batch_mates_change_no_bit_of_a_runner(models, threads, family, view):
    """Outputs are the reference's, which knows no batches."""
    folder, expected = models(family, view)
    runner = open_pipeline(folder, engine="native").runner
    assert runner.encoder.threads == threads
    tokenizer = corpus.tokenizer()
    for side in ("right", "left"):
        for padding, length in (("longest", None), ("max_length", 60)):
            settings = {"padding": padding, "max_length": length, "padding_side": side, "return_tensors": "np"}
            batch = dict(tokenizer(TEXTS, **settings))
            assert (batch["attention_mask"] == 0).any()
            assert same_bits(runner(batch)["logits"], expected)
            backwards = {name: rows[::-1] for name, rows in batch.items()}
            assert same_bits(runner(backwards)["logits"], expected[::-1])
    alone = [runner(dict(tokenizer([text], return_tensors="np")))["logits"] for text in TEXTS]
    assert same_bits(np.concatenate(alone), expected)


@pytest.mark.parametrize(("family", "view"), MODELS)
def test_pipelines_and_loaded_models_answer_alike_alone_and_in_batches(models, threads, family, view):
    folder, _ = models(family, view)
    expected = open_pipeline(folder, engine="native", batch_size=1)(TEXTS)
    assert len({tuple(answer["scores"].values()) for answer in expected}) == len(TEXTS)
    for size in (3, 16):
        assert open_pipeline(folder, engine="native", batch_size=size)(TEXTS) == expected
    loaded = slimformer.load(folder, engine="native")
    alone = [loaded.predict(text, top_k=None) for text in TEXTS]
    for model in (loaded, NativeModel(folder, threads=threads)):
        for size in (1, 16):
            assert model.predict(TEXTS, top_k=None, batch_size=size) == alone
    assert [each[0]["label"] for each in alone] == [answer["label"] for answer in expected]


@pytest.mark.parametrize("family", slow(["bert", "modernbert", "mpnet"], but={"bert"}))
def test_vectors_are_those_of_a_sentence_alone(tmp_path, family):
    folder = classifier(tmp_path / "encoder", family, "ternary", hf.AutoModel)
    loaded = slimformer.load(folder, engine="native")
    alone = np.stack([loaded.encode(text) for text in TEXTS])
    assert len({row.tobytes() for row in alone}) == len(TEXTS)
    for threads in (1, 2):
        model = NativeModel(folder, threads=threads)
        assert same_bits(model.encode(TEXTS, batch_size=16), alone)
        assert same_bits(model.encode(TEXTS[::-1], batch_size=5)[::-1], alone)


def test_images_in_a_batch_have_the_bits_of_one_alone(tmp_path, threads):
    folder = tmp_path / "vit"
    config = zoo.CONFIGS["vit"]()
    config.id2label = dict(enumerate(LABELS))
    torch.manual_seed(0)
    quantized(zoo.enliven(hf.ViTForImageClassification(config)).eval()).save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    runner = open_pipeline(folder, task="image-classification", engine="native").runner
    assert runner.encoder.threads == threads
    pixels, reference = images(16), ExactEncoder(folder)
    expected = np.concatenate([reference.run_image(each) for each in pixels])
    assert same_bits(runner({"pixel_values": pixels})["logits"], expected)
    alone = [runner({"pixel_values": each[None]})["logits"] for each in pixels]
    assert same_bits(np.concatenate(alone), expected)
