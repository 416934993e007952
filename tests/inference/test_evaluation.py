"""Running a model over a split: order, padding and batches do not show in what comes out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimformer.inference.evaluation import evaluate, predict
from slimformer.inference.runners import PADDING
from slimformer.tasks import get_task
from slimformer.tasks.features import Features, item_length
from tests import corpus, runs, zoo


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of different lengths, as data, features and tokenizer."""
    folder = corpus.data_folder(tmp_path_factory.mktemp("data"), train=8, dev=21)
    data = get_task("classification").load(folder, ("dev",))
    tokenizer = corpus.tokenizer()
    return data, data.prepare("dev", tokenizer), tokenizer


def classifier():
    return zoo.build_headed("bert")


def one_by_one(model, data, features, tokenizer):
    collate = data.collator(tokenizer)
    with torch.no_grad():
        return np.concatenate([model(**collate([item])).logits.numpy() for item in features])


@pytest.mark.parametrize("batch_size", [1, 4, 21, 100])
def test_outputs_come_in_the_order_of_the_items(texts, batch_size):
    data, features, tokenizer = texts
    model = classifier()
    found = predict(model, data, features, tokenizer, batch_size)
    assert len({item_length(item) for item in features}) > 3
    np.testing.assert_allclose(found, one_by_one(model, data, features, tokenizer), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(texts, training):
    data, features, tokenizer = texts
    model = classifier().train(training)
    state = torch.get_rng_state()
    first = evaluate(model, data, "dev", features, tokenizer)
    assert evaluate(model, data, "dev", features, tokenizer) == first  # without dropout, whatever the mode
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_mode_is_restored_after_an_error(texts):
    data, _, tokenizer = texts
    model = classifier().train()
    with pytest.raises(IndexError):
        predict(model, data, Features([{"input_ids": np.array([10**6]), "labels": 0}]), tokenizer)
    assert model.training


def test_outputs_that_are_no_numbers_are_refused(texts):
    data, features, tokenizer = texts
    model = classifier()
    model.classifier.weight.data[:] = float("nan")
    with pytest.raises(Exception, match="prediction 0 of `dev` is not a number"):
        evaluate(model, data, "dev", features, tokenizer)


def test_sequences_of_different_lengths_are_filled_up(tmp_path):
    rows = ['{"tokens": ["the"], "tags": ["x"]}', '{"tokens": ["a", "film", "was"], "tags": ["y", "x", "y"]}']
    (tmp_path / "dev.jsonl").write_text("\n".join(rows) + "\n")
    data = get_task("tagging").load(tmp_path, ("dev",))
    tokenizer = corpus.tokenizer()
    features = data.prepare("dev", tokenizer)
    found = predict(zoo.build_headed("roberta"), data, features, tokenizer, batch_size=1)
    assert found.shape == (2, 5, 2)
    assert (found[0, 3:] == PADDING).all()
    assert not (found[0, :3] == PADDING).any()


def test_lengths_of_items():
    assert item_length({"input_ids": [1, 2, 3]}) == 3
    assert item_length({"input_ids": np.array([1, 2])}) == 2
    assert item_length({"input_ids": [np.array([1, 2]), np.array([1, 2, 3, 4])]}) == 4
    assert item_length({"pixel_values": np.zeros((3, 8, 8))}) == 0
    assert item_length({"input_ids": []}) == 0


def test_images(tmp_path):
    """Images have no length; they stay in order all the same."""
    from PIL import Image

    for number in range(5):
        folder = tmp_path / "dev" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number * 50, 0, 0)).save(folder / f"{number}.png")
    data = get_task("image-classification").load(tmp_path, ("dev",))
    features = data.prepare("dev", None, 16)
    model = zoo.build_headed("vit")
    together, alone = (predict(model, data, features, None, size) for size in (5, 1))
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    assert len(np.unique(alone.round(4), axis=0)) == 5


@pytest.mark.slow
def test_a_generated_task_is_learnt(tmp_path):
    """The whole way, long enough to see that what is measured is what was trained."""
    base, data = corpus.model_folder(tmp_path / "base"), corpus.data_folder(tmp_path / "data")
    flags = ["--max-steps", 60, "--batch-size", 16, "--lr", "2e-3", "--json", "--quiet"]
    trained = runs.finetune(base, "classification", data, tmp_path / "out", *flags).json
    assert trained["metrics"]["accuracy"] > 0.9
    assert runs.run("evaluate", tmp_path / "out", "--data", data, "--json").json["metrics"] == trained["metrics"]
