"""`--keep-close`: what each baseline changes, what it refuses, and runs that are killed and go on."""

from __future__ import annotations

import hashlib

import pytest
import torch
import transformers as hf

import slimformer
from slimformer import models
from slimformer.artifact import read_manifest
from slimformer.errors import ConfigError
from slimformer.methods.finetune import FinetuneConfig
from slimformer.methods.finetune.baselines import BASELINES, read_baseline
from slimformer.objectives.losses import contrastive_loss, l2_distance
from slimformer.tasks import get_task
from slimformer.train import checkpoints
from tests import corpus, forking, runs, zoo
from tests.methods.test_every_kind import images

QUICK = {"max_steps": 6, "batch_size": 16, "lr": 1e-3, "log_every": 1, "quiet": True}
EACH = [
    "recadam[pull=100,middle=3]",
    "mars[0.05,head_radius=1]",
    "frobenius[radius=0.02]",
    "r3f[noise=0.1]:0.5",
    "supcon[temperature=0.3]:0.5",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return corpus.model_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus.data_folder(tmp_path_factory.mktemp("data"))


def finetune(base, data, **settings):
    return slimformer.finetune(model=base, task="classification", data=data, **{**QUICK, **settings})


@pytest.fixture(scope="module")
def plain(base, data):
    return finetune(base, data).model.state_dict()


def of_base(base, state):
    """The weights of the base, and those they have become."""
    start = hf.BertModel.from_pretrained(base).state_dict()
    names = [name for name in start if f"bert.{name}" in state]
    assert len(names) > 30
    return {name: start[name] for name in names}, {name: state[f"bert.{name}"] for name in names}


def distance(base, state):
    start, trained = of_base(base, state)
    return float(l2_distance(trained.values(), start.values()))


def test_none_is_plain_fine_tuning(base, data, plain):
    state = finetune(base, data, keep_close="none").model.state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in state.items())


@pytest.mark.parametrize("close", EACH)
def test_each_changes_the_weights(close, base, data, plain):
    state = finetune(base, data, keep_close=close).model.state_dict()
    assert not torch.equal(
        state["bert.encoder.layer.1.output.dense.weight"], plain["bert.encoder.layer.1.output.dense.weight"]
    )


def test_recadam_recalls_the_base_and_learns_the_head(base, data, plain):
    """Long before learning takes over the base hardly moves; the new head does."""
    held = finetune(base, data, keep_close="recadam[pull=5000,middle=1000]", weight_decay=0.0).model.state_dict()
    assert distance(base, held) < 1e-6
    assert distance(base, plain) > 0.1
    assert not torch.equal(
        held["classifier.weight"], finetune(base, data, max_steps=1, lr=1e-12).model.classifier.weight
    )
    free = finetune(base, data, keep_close="recadam[anneal=linear,middle=1]", weight_decay=0.0).model.state_dict()
    assert distance(base, free) > 0.1


def test_mars_keeps_every_row_near_the_base_and_a_new_head_near_0(base, data, plain):
    radius, head = 0.05, 0.3
    state = finetune(base, data, keep_close=f"mars[{radius},head_radius={head}]").model.state_dict()
    start, trained = of_base(base, state)
    longest = {n: float((trained[n] - start[n]).abs().sum(-1).max()) for n in start if start[n].dim() > 1}
    assert max(longest.values()) <= radius * (1 + 1e-4)
    assert sum(length > 0.99 * radius for length in longest.values()) > 10
    assert float(state["classifier.weight"].abs().sum(-1).max()) <= head * (1 + 1e-5)
    assert float(plain["classifier.weight"].abs().sum(-1).max()) > head


def test_a_head_that_is_kept_stays_close_to_itself(base, data, tmp_path):
    """Fine-tuned again on the same labels, an artifact has no new head."""
    first = finetune(base, data, out=tmp_path / "first", max_steps=2).model.classifier.weight.detach().clone()
    again = finetune(tmp_path / "first", data, keep_close="mars[0.05,head_radius=0.001]").model.classifier.weight
    assert 0 < float((again - first).detach().abs().sum(-1).max()) <= 0.05 * (1 + 1e-4)


def test_terms_are_logged_beside_the_loss(base, data):
    smooth = finetune(base, data, keep_close="r3f[noise=0.1]:0.5").losses
    assert smooth["loss"] == pytest.approx(smooth["labels"] + 0.5 * smooth["r3f"], rel=1e-5)
    assert smooth["r3f"] > 0
    contrast = finetune(base, data, keep_close="supcon:0.5").losses
    assert contrast["loss"] == pytest.approx(contrast["labels"] + 0.5 * contrast["contrastive"], rel=1e-5)


@pytest.mark.parametrize(
    ("close", "temperature", "weight"), [("supcon", 0.1, 1), ("supcon[temperature=0.3]:2", 0.3, 2)]
)
@pytest.mark.parametrize("family", ["bert", "vit", "qwen2"])
def test_supcon_compares_first_tokens_and_of_decoders_the_last(family, close, temperature, weight):
    model = zoo.build_headed(family)
    model.config.pad_token_id = 0
    labels = torch.tensor([0, 1, 1])
    inputs = {**zoo.inputs_for(family), "labels": labels}
    loss = read_baseline(close).objective(model, get_task("classification").kind(), seed=0)(model, inputs)
    outputs = model(**inputs)
    hidden = model.base_model(**{name: value for name, value in inputs.items() if name != "labels"}).last_hidden_state
    lengths = [9, 7, 5]  # of the texts of `inputs_for`, padded on the right
    features = [row[length - 1 if family == "qwen2" else 0] for row, length in zip(hidden, lengths, strict=True)]
    contrast = contrastive_loss(torch.stack(features), labels, temperature)
    torch.testing.assert_close(loss.parts["contrastive"], contrast)
    torch.testing.assert_close(loss.total, outputs.loss + weight * contrast)


@pytest.mark.slow
def test_accumulation_weighs_the_terms(data, tmp_path):
    base = corpus.model_folder(tmp_path / "still", dropout=0.0)
    curves = []
    for parts in (1, 4):
        # Noise that is hardly there: it is drawn anew for each part.
        result = finetune(base, data, keep_close="r3f[noise=1e-12]", accumulation=parts)
        curves.append([entry["loss"] for entry in result.log if "loss" in entry])
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


@pytest.mark.parametrize("close", EACH)
def test_the_command_records_what_was_run(close, base, data, tmp_path):
    out = tmp_path / "out"
    assert runs.finetune(base, "classification", data, out, "--keep-close", close, "--json").json["steps"] == 2
    assert read_manifest(out).steps[-1].config["keep_close"] == str(read_baseline(close))
    assert slimformer.verify(out).max_difference == 0


@pytest.mark.parametrize("close", ["mars", "r3f[noise=0.1]", "supcon"])
def test_images(close, tmp_path):
    base = runs.viewer(tmp_path / "base")
    done = runs.finetune(
        base, "image-classification", images(tmp_path / "images"), tmp_path / "out", "--keep-close", close, "--json"
    )
    assert done.json["steps"] == 2


@pytest.mark.parametrize("close", ["recadam", "r3f[noise=0.1]", "supcon"])
def test_decoders(close, data, tmp_path):
    base = runs.decoder(tmp_path / "base")
    done = runs.finetune(base, "classification", data, tmp_path / "out", "--keep-close", close, "--json")
    assert done.json["steps"] == 2


@pytest.mark.parametrize(
    ("close", "words"),
    [
        ("mras", "there is no baseline `mras` (do you mean `mars`?); known: recadam, mars, frobenius, r3f, supcon"),
        ("mars[", "`mars[` is no baseline; write it as `name:weight` or `name[options]:weight`"),
        ("r3f, mars", "`r3f, mars` is no baseline"),
        ("mars:3", "`mars` has no weight, but one is given; in brackets it has `radius=…`, `head_radius=…`"),
        ("r3f:0", "the weight of `r3f` is 0, which changes nothing; give more, or `none`"),
        ("r3f:-1", "the weight `-1` of `r3f:-1` is no number from 0"),
        ("mars[-1]", "`radius` is `-1`: should be greater than 0"),
        ("recadam[anneal=constant]", "`anneal` is `constant`: should be 'sigmoid' or 'linear'"),
        ("recadam[middle=0]", "`middle` is `0`: should be greater than or equal to 1"),
        ("r3f[epsilon=1]", "there is no setting `epsilon`; known: distribution, noise"),
        ("supcon[middle]", "there is no pooling `middle`; known: cls"),
        ("supcon[temperature=0]", "`temperature` is `0`: should be greater than 0"),
    ],
)
def test_what_cannot_be_read_is_refused(close, words):
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig.make({"keep_close": close})
    message = str(caught.value)
    assert message.startswith(f"`keep_close` is `{close}`: ")
    assert words in message


@pytest.mark.parametrize("task", ["regression", "multi-label", "tagging", "question-answering", "retrieval", "stsb"])
@pytest.mark.parametrize("close", ["r3f", "supcon"])
def test_kinds_without_one_class_are_refused_by_name_before_anything_is_read(close, task):
    with pytest.raises(ConfigError, match=f"`keep_close` is `{close}:1`, .* and task `{task}` is of kind `"):
        slimformer.finetune(model="nowhere", task=task, data="nowhere", keep_close=close)


@pytest.mark.parametrize("name", BASELINES.names)
def test_every_baseline_has_a_line_of_help_and_learns_classes(name):
    assert BASELINES.help(name)
    read_baseline(name).check(get_task("classification"))
    read_baseline(name).check(get_task("image-classification"))


def test_weights_that_the_base_has_not_are_known(base, data):
    model = models.load_model(base, hf.AutoModelForSequenceClassification)
    assert models.new_weights(model) == {"classifier.weight", "classifier.bias"}
    assert models.new_weights(models.load_model(base, hf.AutoModel)) == frozenset()


def digest(out):
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("close", EACH)
def test_killed_and_resumed_ends_with_the_same_bytes(close, base, data, tmp_path):
    flags = ["--task", "classification", "--model", base, "--data", data, "--max-steps", 12, "--batch-size", 16]
    flags += ["--lr", "1e-3", "--save-every", 3, "--eval-every", 4, "--threads", 1, "--keep-close", close, "--json"]

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert runs.run("finetune", *flags, "--out", whole).code == 0
    folder = tmp_path / "stopped.training"
    assert forking.killed_when((folder / "checkpoint-6" / "sealed.json").exists, "finetune", *flags, "--out", stopped)
    assert not stopped.exists()
    # Weights once, both moments of Adam once each, and nothing of the base.
    checkpoint = checkpoints.latest(folder)
    assert checkpoint is not None
    weights, moments = ((checkpoint / name).stat().st_size for name in ("weights.safetensors", "optimizer.pt"))
    assert moments < 2.5 * weights
    assert runs.run("finetune", *flags, "--out", stopped, "--resume").code == 0
    assert digest(stopped) == digest(whole)
