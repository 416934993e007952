"""The front of the best allocations: measured, drawn, and with the sizes by their names."""

from __future__ import annotations

import json

from slimformer.methods.elastic.analysis import pareto
from slimformer.tasks.options import TaskOptions
from tests import corpus
from tests.elastic import elastic_folder


def test_the_front_of_an_elastic_artifact(tmp_path):
    from transformers import AutoModelForSequenceClassification

    corpus.data_folder(tmp_path / "data")
    corpus.model_folder(tmp_path / "base", dropout=0.0)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base").eval()
    task = {"name": "classification", "kind": "classification", "labels": ["no", "yes"]}
    elastic_folder(tmp_path / "elastic", model, processor=corpus.tokenizer(), task=task)
    options = TaskOptions(data=str(tmp_path / "data"))
    finding = pareto(tmp_path / "elastic", options, examples=16)
    data = finding.data
    assert len(data.points) == 3**2
    assert set(data.sizes) == {"S", "M", "XL"}
    assert data.best[0].cost == min(point.cost for point in data.points)
    assert data.best[-1].loss == min(point.loss for point in data.points)
    assert finding.figure.svg.startswith("<svg")
    assert json.loads(json.dumps(data.as_dict()))["front"][0]["allocation"] == data.best[0].allocation.by_block
