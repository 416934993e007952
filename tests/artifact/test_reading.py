"""A changed tokenizer, image processor, label or way of pooling gives other answers and is refused like a weight."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers as hf

from slimformer.artifact import Step, load, save, verify
from slimformer.artifact.reading import read
from slimformer.errors import ArtifactError
from slimformer.models.sentence import SentenceSettings
from tests import zoo
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.forging import edit, resum


def swap(content):
    vocabulary = content["model"]["vocab"]
    vocabulary["fine"], vocabulary["dull"] = vocabulary["dull"], vocabulary["fine"]


#: File → how it is changed, and what is then no longer as recorded.
CHANGES = {
    "swapped words": ("tokenizer.json", swap, "vocabulary"),
    "another split": ("tokenizer.json", lambda content: content.update(pre_tokenizer=None), "texts|pieces"),
    "another padding": ("tokenizer_config.json", lambda content: content.update(pad_token="dull"), "special tokens"),
    "another length": ("tokenizer_config.json", lambda content: content.update(model_max_length=3), "cut and padded"),
    "no length": ("tokenizer_config.json", lambda content: content.update(model_max_length="x"), "does not work"),
    "swapped labels": ("config.json", lambda content: content["id2label"].update({"0": "LABEL_1"}), "labels"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", [load, verify])
def test_inputs_read_or_outputs_named_in_another_way_are_refused(artifact, way, change):
    name, apply, message = CHANGES[change]
    content = json.loads((artifact / name).read_text())
    apply(content)
    (artifact / name).write_text(json.dumps(content))
    resum(artifact)
    with pytest.raises(ArtifactError, match=message):
        way(artifact)


def test_another_pooling_is_refused(tmp_path):
    model = tiny_bert(hf.BertModel)
    save(tmp_path / "out", model, processor=tiny_tokenizer(), step=STEP, sentence=SentenceSettings(("mean",)))
    assert load(tmp_path / "out").manifest.model.architecture == "BertModel"
    SentenceSettings(("cls",)).write(tmp_path / "out", 16)
    resum(tmp_path / "out")
    with pytest.raises(ArtifactError, match="sentence settings of artifact"):
        load(tmp_path / "out")


def test_another_preparation_of_images_is_refused(tmp_path):
    processor = hf.ViTImageProcessor(size={"height": 16, "width": 16})
    save(tmp_path / "out", zoo.build_headed("vit"), processor=processor, step=Step(method="finetune"))
    verify(tmp_path / "out")
    edit(tmp_path / "out" / "preprocessor_config.json", image_mean=[0.1, 0.5, 0.5])
    resum(tmp_path / "out")
    with pytest.raises(ArtifactError, match="output `pixels` differs"):
        load(tmp_path / "out")


def test_reading_leaves_a_tokenizer_as_it_was(tmp_path):
    tokenizer = tiny_tokenizer()
    before = tokenizer.backend_tokenizer.to_str()
    read(tmp_path, {0: "bad"}, tokenizer)
    read(tmp_path, {0: "bad"}, tokenizer)
    tokenizer("fine film")
    assert tokenizer.backend_tokenizer.to_str() == before


def test_what_is_recorded_is_the_same_each_time(tmp_path):
    one, other = (read(tmp_path, {0: "bad", 1: "good"}, tiny_tokenizer()) for _ in range(2))
    assert one == other
    assert np.unique(list(one.digests.values())).size == len(one.digests)
