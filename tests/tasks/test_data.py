"""What trainers do with a task: real models and the real Trainer on each kind of head."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import BertConfig, LlamaConfig, Trainer, TrainingArguments, ViTConfig

from slimformer.errors import DataError
from slimformer.tasks import get_task

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def reduced(data, logits, labels):
    """What `Trainer` keeps of the outputs of a batch: spans have two, all others one."""
    names = ("start_logits", "end_logits") if isinstance(logits, tuple) else ("logits",)
    parts = logits if isinstance(logits, tuple) else (logits,)
    return data.outputs(dict(zip(names, parts, strict=False)), {"labels": labels})


def evaluate(data, split, processor, config, tmp_path):
    """Train one step and evaluate, as the trainer will."""
    features = data.prepare(split, processor, max_length=64)
    for name, value in data.config_kwargs().items():
        setattr(config, name, value)
    trainer = Trainer(
        model=data.model_class().from_config(config),
        args=TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
            save_strategy="no", per_device_eval_batch_size=3, remove_unused_columns=False,
        ),
        data_collator=data.collator(processor),
        train_dataset=features,
        preprocess_logits_for_metrics=lambda logits, labels: reduced(data, logits, labels),
        eval_dataset=features,
    )  # fmt: skip
    trainer.train()
    predictions = trainer.predict(features).predictions
    return data.compute_metrics(split, features, predictions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "metric"),
    [
        ("sst2", "sst2", "accuracy"),
        ("stsb", "stsb", "pearson"),
        ("ncbi-ner", "ner-NCBI-disease", "f1"),
        ("arc", "arc", "accuracy"),
        ("xquad", "xquad", "f1"),
    ],
)
def test_encoders(shared_data, minilm, tmp_path, name, folder, metric):
    data = get_task(name).load(shared_data / folder, ["dev"], limit=8)
    measured = evaluate(data, "dev", minilm, BertConfig(vocab_size=len(minilm), **SMALL), tmp_path)
    assert measured.keys() == set(data.metrics)
    assert -1 <= measured[metric] <= 1
    assert all(type(value) is float for value in measured.values())


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_language_models(shared_data, minilm, letters, tmp_path, objective):
    data = get_task("wikitext-2").load(shared_data / "wikitext-2", ["dev"], limit=4, objective=objective)
    tokenizer = minilm if objective == "masked" else letters
    config = BertConfig if objective == "masked" else LlamaConfig
    measured = evaluate(data, "dev", tokenizer, config(vocab_size=len(tokenizer), **SMALL), tmp_path)
    assert measured["perplexity"] == pytest.approx(len(tokenizer), rel=0.2)


def test_the_loss_measured_is_the_loss_trained(letters, write):
    data = get_task("language-modelling").load(write("train.txt", "some words to predict"), ["train"])
    features = data.prepare("train", letters, max_length=64)
    batch = data.collator(letters)(features[:])
    model = data.model_class().from_config(LlamaConfig(vocab_size=len(letters), **SMALL)).eval()
    with torch.no_grad():
        output = model(**batch)
    measured = data.compute_metrics("train", features, data.outputs(output, batch))
    assert measured["loss"] == pytest.approx(output.loss.item(), rel=1e-5)


def test_images(shared_data, tmp_path):
    data = get_task("fashion-mnist").load(shared_data / "fashion-mnist", ["test"], limit=8)
    config = ViTConfig(image_size=64, patch_size=16, **SMALL)
    assert "accuracy" in evaluate(data, "test", None, config, tmp_path)


def test_preparing_twice_gives_the_same(shared_data, minilm):
    data = get_task("rte").load(shared_data / "rte", ["dev"], limit=20)
    for one, other in zip(data.prepare("dev", minilm), data.prepare("dev", minilm), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_predictions_are_checked(write, pieces):
    data = get_task("classification").load(write("dev.tsv", "text\tlabel\na\tx\nb\ty\n"), ["dev"])
    features = data.prepare("dev", pieces)
    with pytest.raises(DataError, match="3 predictions for the 2 items of `dev`"):
        data.compute_metrics("dev", features, np.zeros((3, 2)))
    with pytest.raises(DataError, match="prediction 1 of `dev` is not a number"):
        data.compute_metrics("dev", features, np.array([[0, 1], [np.nan, 0]]))


def test_lengths_are_checked(write, pieces):
    data = get_task("classification").load(write("dev.tsv", "text\tlabel\na\tx\nb\ty\n"), ["dev"])
    with pytest.raises(DataError, match="max_length `513` is more than the 512 tokens the tokenizer allows"):
        data.prepare("dev", pieces, max_length=513)
    with pytest.raises(DataError, match="max_length `2` leaves no room for text"):
        data.prepare("dev", pieces, max_length=2)


def test_importing_is_quick():
    code = "import sys, slimformer.tasks as t; t.get_task('sst2'); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "transformers", "datasets", "sklearn", "scipy", "PIL", "pyarrow", "seqeval"):
        assert f"'{heavy}'" not in loaded
