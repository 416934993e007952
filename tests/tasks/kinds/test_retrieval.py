from __future__ import annotations

import numpy as np
import pytest

from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.kinds.embedding import against_database


def test_labelled_items(write, pieces):
    data = get_task("retrieval").load(write("test.tsv", "text\tlabel\na\tx\nb\tx\nc\ty\nd\ty\n"), ["test"])
    features = data.prepare("test", pieces)
    assert "labels" not in features[0]
    assert data.model_class().__name__ == "AutoModel"
    embeddings = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]])
    assert data.compute_metrics("test", features, embeddings) == {"one_nearest_neighbour": 1.0}
    assert data.compute_metrics("test", features, embeddings[[0, 2, 1, 3]]) == {"one_nearest_neighbour": 0.0}
    assert against_database(data["test"], embeddings, data["test"], embeddings) == 1.0


def test_pairs_find_each_other(write):
    data = get_task("retrieval").load(write("test.tsv", "query\tdocument\na\tb\nc\td\n"), ["test"])
    labels = [row["label"] for row in data["test"]]
    assert [row["text"] for row in data["test"]] == ["a", "b", "c", "d"]
    assert labels[0] == labels[1] != labels[2] == labels[3]


def test_one_text_without_a_label_is_refused(write):
    with pytest.raises(DataError, match=r"test.tsv` line 2: one text column and no label"):
        get_task("retrieval").load(write("test.tsv", "id\ttext\n1\ta\n"), ["test"])
