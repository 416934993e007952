"""Several masks as one voice."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import slimformer
from slimformer.errors import ConfigError
from slimformer.methods.mask.analysis import compare_ensembles
from slimformer.methods.mask.ensemble import combine, ensemble, ways
from tests import corpus
from tests.methods.test_every_kind import generated

QUICK = {"batch_size": 8, "lr": 0.05, "blocks": "0-", "quiet": True, "max_steps": 4}


def test_combining():
    one, two, three = (np.array([[3.0, 0.0, 0.0]]), np.array([[0.0, 1.0, 0.9]]), np.array([[0.0, 0.2, 0.1]]))
    assert combine([one, two, three], "labels").argmax() == 1
    assert combine([one, two, three], "logits").argmax() == 0
    assert combine([one, two, three], "logits").tolist() == pytest.approx(np.array([[1.0, 0.4, 1 / 3]]))
    shares = [np.exp(each) / np.exp(each).sum() for each in (one, two, three)]
    assert combine([one, two, three], "probabilities").tolist() == pytest.approx(np.mean(shares, axis=0))


def test_a_tied_vote_goes_to_the_surer_one():
    assert combine([np.array([[2.0, 0.0]]), np.array([[0.0, 1.0]])], "labels").argmax() == 0
    assert combine([np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])], "labels").argmax() == 1


def test_what_can_be_combined_how():
    assert ways(np.zeros((4, 3))) == ("labels", "logits", "probabilities")
    assert ways(np.zeros((4, 1))) == ways(np.zeros(4)) == ("logits",)
    assert ways((np.zeros((4, 9)), np.zeros((4, 9)))) == ("logits", "probabilities")
    starts, ends = combine([(np.ones((1, 2)), np.zeros((1, 2)))] * 2, "logits")
    assert starts.tolist() == [[1, 1]]
    assert ends.tolist() == [[0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "question-answering"])
def test_masks_of_several_seeds(kind, tmp_path):
    base = corpus.model_folder(tmp_path / "base")
    (tmp_path / "data").mkdir()
    data = generated(kind, tmp_path / "data")
    folders = []
    for seed in range(3):
        folders.append(tmp_path / f"{seed}")
        slimformer.mask(model=base, task=kind, data=data, out=folders[-1], seed=seed, **QUICK)
    result = ensemble(folders, data)
    alone = [slimformer.artifact.read_manifest(folder).metrics[f"{kind}/dev"] for folder in folders]
    metric = next(iter(result.metrics))
    # A correlation of outputs that hardly differ yet shows in which order numbers were added.
    assert result.members == pytest.approx([each[metric] for each in alone], abs=5e-3)
    assert result.how in result.chosen_by
    assert result.metrics[metric] == result.chosen_by[result.how] == max(result.chosen_by.values())
    again = ensemble(folders, data, how="logits")
    assert again.how == "logits"
    assert again.metrics[metric] == result.chosen_by["logits"]
    assert ensemble(folders[:1], data).metrics[metric] == pytest.approx(result.members[0])
    assert result.bytes < 1.2 * sum(path.stat().st_size for path in base.glob("*.safetensors"))


@pytest.mark.slow
def test_fine_tuned_models_beside_masks(tmp_path):
    """Each ensemble is what the members' outputs, taken one by one with the task's own evaluation, combine to."""
    base, data = corpus.model_folder(tmp_path / "base"), corpus.data_folder(tmp_path / "data")
    common = {"model": base, "task": "classification", "data": data, "batch_size": 8, "max_steps": 4, "quiet": True}
    groups = {"masks": [], "fine-tuned": []}
    for seed in range(3):
        groups["masks"].append(tmp_path / f"mask-{seed}")
        slimformer.mask(**common, lr=0.05, blocks="0-", seed=seed, out=groups["masks"][-1])
        groups["fine-tuned"].append(tmp_path / f"tuned-{seed}")
        slimformer.finetune(**common, lr=3e-3, seed=seed, out=groups["fine-tuned"][-1])
    finding = compare_ensembles(groups, data)
    rows = finding.data["ensembles"]
    json.dumps(finding.data, allow_nan=False)
    texts, labels = zip(*(line.split("\t") for line in (data / "dev.tsv").read_text().splitlines()[1:]), strict=True)
    tokenizer = corpus.tokenizer()
    for name, folders in groups.items():
        logits = []
        for folder in folders:
            model = slimformer.load(folder).model
            with torch.inference_mode():
                logits.append([model(**tokenizer(text, return_tensors="pt")).logits[0].tolist() for text in texts])
        truth = np.array([["no", "yes"].index(label) for label in labels])
        alone = [float((np.array(each).argmax(-1) == truth).mean()) for each in logits]
        assert rows[name]["members"] == pytest.approx(alone)
        assert rows[name]["mean"] == pytest.approx(np.mean(alone))
        ways = {
            "logits": np.mean(logits, axis=0),
            "probabilities": np.mean([np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in logits], axis=0),
        }
        if rows[name]["how"] in ways:
            combined = ways[rows[name]["how"]].argmax(-1)
        else:
            combined = (np.mean([np.array(each).argmax(-1) for each in logits], axis=0) > 0.5).astype(int)
        assert rows[name]["ensemble"] == pytest.approx((combined == truth).mean())
    copies = sum((folder / "model.safetensors").stat().st_size for folder in groups["fine-tuned"])
    assert rows["fine-tuned"]["bytes"] == pytest.approx(copies, rel=0.1)
    assert rows["masks"]["bytes"] < 0.5 * rows["fine-tuned"]["bytes"]
    assert finding.figure.svg.startswith("<svg")


@pytest.mark.slow
def test_masks_whose_answers_mean_different_things_are_refused(tmp_path):
    base = corpus.model_folder(tmp_path / "base")
    for kind in ("classification", "tagging"):
        (tmp_path / "data" / kind).mkdir(parents=True)
        data = generated(kind, tmp_path / "data" / kind)
        slimformer.mask(model=base, task=kind, data=data, out=tmp_path / kind, **QUICK)
    with pytest.raises(ConfigError, match=r"classification` answers .* and .*tagging` answers .*; give models of"):
        ensemble([tmp_path / "classification", tmp_path / "tagging"], tmp_path / "data" / "classification")


def test_no_masks():
    with pytest.raises(ConfigError, match="no mask was given"):
        ensemble([], "data")
