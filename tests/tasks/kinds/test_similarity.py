"""Similarity of pairs by embeddings, without training."""

from __future__ import annotations

import numpy as np
import pytest

from slimformer.errors import DataError
from slimformer.tasks import get_task
from tests import corpus


def write(folder, lines, header="sentence1\tsentence2\tscore"):
    folder.mkdir()
    (folder / "dev.tsv").write_text("\n".join([header, *lines]) + "\n")
    return folder


def test_cosines_are_compared_with_the_numbers(tmp_path):
    folder = write(tmp_path / "data", ["good film\tgood film\t5", "good film\tbad film\t2", "good\tbad\t0"])
    data = get_task("similarity").load(folder, ("dev",))
    tokenizer = corpus.tokenizer()
    features = data.prepare("dev", tokenizer)
    assert len(data["dev"]) == 3
    assert len(features) == 6
    assert "labels" not in features[0]
    assert list(features[3]["input_ids"]) == tokenizer("good film")["input_ids"]
    vectors = np.array([[1, 0], [1, 0], [1, 0], [2, 0], [1, 1], [0, 1]], dtype=float)
    assert data.compute_metrics("dev", features, vectors)["spearman"] == pytest.approx(1.0)
    turned = vectors[[0, 1, 2, 5, 4, 3]]
    assert data.compute_metrics("dev", features, turned)["spearman"] == pytest.approx(-1.0)


def test_one_text_is_no_pair(tmp_path):
    folder = write(tmp_path / "data", ["good film\t5", "bad film\t2"], header="sentence1\tscore")
    with pytest.raises(DataError, match="between two texts"):
        get_task("similarity").load(folder, ("dev",))
