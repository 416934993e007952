"""Several masks as one voice."""

from __future__ import annotations

import numpy as np
import pytest

import slimformer
from slimformer.errors import ConfigError
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


def test_masks_whose_answers_mean_different_things_are_refused(tmp_path):
    base = corpus.model_folder(tmp_path / "base")
    for kind in ("classification", "tagging"):
        (tmp_path / "data" / kind).mkdir(parents=True)
        data = generated(kind, tmp_path / "data" / kind)
        slimformer.mask(model=base, task=kind, data=data, out=tmp_path / kind, **QUICK)
    with pytest.raises(ConfigError, match=r"classification` answers .* and .*tagging` answers .*; give masks of"):
        ensemble([tmp_path / "classification", tmp_path / "tagging"], tmp_path / "data" / "classification")


def test_no_masks():
    with pytest.raises(ConfigError, match="no mask was given"):
        ensemble([], "data")
