"""A changed tokenizer, image processor, label or way of pooling gives other answers and is refused like a weight."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import transformers as hf
from tokenizers import Tokenizer, processors

from slimformer.artifact import Step, load, save, verify
from slimformer.artifact.reading import IMAGE, LATER, TEXTS, check, read
from slimformer.errors import ArtifactError
from slimformer.models.sentence import SentenceSettings
from tests import zoo
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.forging import edit, rebind, resum, sign


def swap(content):
    vocabulary = content["model"]["vocab"]
    vocabulary["fine"], vocabulary["dull"] = vocabulary["dull"], vocabulary["fine"]


#: File → how it is changed, and what is then no longer as recorded.
CHANGES = {
    "swapped words": ("tokenizer.json", swap, "vocabulary"),
    "another split": ("tokenizer.json", lambda content: content.update(pre_tokenizer=None), "texts|pieces"),
    "another padding": ("tokenizer_config.json", lambda content: content.update(pad_token="dull"), "special tokens"),
    "another length": ("tokenizer_config.json", lambda content: content.update(model_max_length=3), "cut and padded"),
    "no length": ("tokenizer_config.json", lambda content: content.update(model_max_length="x"), "no number of tokens"),
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


NAMES = ["token_type_ids", "input_ids", "attention_mask"]


def giving(names):
    """A tokenizer that tells the second text of a pair from the first, and gives these inputs."""
    tokenizer = tiny_tokenizer()
    template = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    tokenizer.backend_tokenizer.post_processor = template
    tokenizer.model_input_names = list(names)
    assert set(tokenizer("a fine film")) == set(names)
    return tokenizer


@pytest.fixture(params=["one type", "two types"])
def typed(request, tmp_path):
    """The config of a model that tells two sorts of token apart, the texts of a pair, or of one that does not."""
    config = hf.BertConfig(type_vocab_size={"one type": 1, "two types": 2}[request.param])
    config.save_pretrained(tmp_path)
    return config


def test_only_what_feeds_the_model_counts(typed, tmp_path):
    (tmp_path / "reading.json").write_text(read(tmp_path, typed, giving(NAMES), None).model_dump_json())
    check(tmp_path, typed, giving(NAMES[::-1]), None)
    if typed.type_vocab_size == 1:
        check(tmp_path, typed, giving(NAMES[1:]), None)
    else:  # the texts of a pair are no longer told apart
        with pytest.raises(ArtifactError, match="tokens of cut and padded texts"):
            check(tmp_path, typed, giving(NAMES[1:]), None)
    with pytest.raises(ArtifactError, match="tokens of cut and padded texts"):  # padding would be attended to
        check(tmp_path, typed, giving(["input_ids"]), None)


def test_types_that_come_back_are_nothing_new(tmp_path):
    config = hf.BertConfig(type_vocab_size=1)
    config.save_pretrained(tmp_path)
    (tmp_path / "reading.json").write_text(read(tmp_path, config, giving(NAMES[1:]), None).model_dump_json())
    check(tmp_path, config, giving(NAMES), None)


def as_before(folder, config, tokenizer):
    """Write how inputs are read as it was written when every output of a tokenizer counted."""
    pair, padded = tokenizer(TEXTS[0], TEXTS[1], truncation=True, max_length=8), tokenizer(list(TEXTS), padding=True)
    aspects = {
        "texts": [dict(tokenizer(text)) for text in TEXTS],
        "cut and padded texts": [dict(pair), dict(padded), min(int(tokenizer.model_max_length), 10**9)],
    }
    digests = {
        name: hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=list).encode()).hexdigest()
        for name, value in aspects.items()
    }
    today = read(folder, config, tokenizer, None).digests.items()
    content = {"digests": {**{name: digest for name, digest in today if name not in LATER}, **digests}}
    (folder / "reading.json").write_text(json.dumps(content))


def test_what_was_recorded_earlier_is_still_compared(typed, tmp_path):
    as_before(tmp_path, typed, giving(NAMES))
    check(tmp_path, typed, giving(NAMES), None)
    if typed.type_vocab_size == 1:
        check(tmp_path, typed, giving(NAMES[1:]), None)
    else:
        with pytest.raises(ArtifactError, match="texts of artifact"):
            check(tmp_path, typed, giving(NAMES[1:]), None)
    shorter = giving(NAMES)
    shorter.model_max_length = 3
    with pytest.raises(ArtifactError, match="texts of artifact"):
        check(tmp_path, typed, shorter, None)


def test_a_record_without_one_of_its_aspects_is_refused(artifact):
    content = json.loads((artifact / "reading.json").read_text())
    del content["digests"]["vocabulary"]
    (artifact / "reading.json").write_text(json.dumps(content))
    rebind(artifact)
    with pytest.raises(ArtifactError, match=r"reading\.json` of artifact .* says nothing of the vocabulary"):
        load(artifact)


def test_another_way_of_resizing_is_no_other_preparation(tmp_path):
    """Ways of resizing differ by a level or two of 255, whatever the levels are divided by."""
    processor = hf.ViTImageProcessor(size=dict(zip(("height", "width"), IMAGE, strict=True)), image_std=[0.2] * 3)
    config = hf.BertConfig()
    config.save_pretrained(tmp_path)
    record = read(tmp_path, config, processor, None)
    assert record.image is not None
    other = record.image.model_copy(update={"values": [value + 2 / 255 / 0.2 for value in record.image.values]})
    (tmp_path / "reading.json").write_text(record.model_copy(update={"image": other}).model_dump_json())
    check(tmp_path, config, processor, None)


def reversed_words(folder):
    """An artifact with another tokenizer of the same size."""
    content = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    swap(content)
    backend = Tokenizer.from_str(json.dumps(content))
    words = hf.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    save(folder, tiny_bert(seed=1), processor=words, step=STEP)
    return folder


@pytest.mark.parametrize("way", [load, verify])
@pytest.mark.parametrize(
    "files", [["tokenizer.json"], ["tokenizer.json", "reading.json"], ["tokenizer.json", "reading.json", "probe.json"]]
)
def test_files_of_another_artifact_are_refused(artifact, way, files, tmp_path):
    other = reversed_words(tmp_path / "other")
    for name in files:
        shutil.copy(other / name, artifact / name)
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"not those recorded|not the one its `probe\.json`|outputs recorded"):
        way(artifact)


@pytest.mark.parametrize("way", [load, verify])
def test_a_record_that_was_removed_is_missed(artifact, way):
    (artifact / "reading.json").unlink()
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"`reading\.json` of artifact .* is missing"):
        way(artifact)


@pytest.mark.parametrize("way", [load, verify])
@pytest.mark.parametrize(
    "change", [{"labels": ["good", "bad", "neither"]}, {"kind": "multi-label"}, {"settings": {"max_length": 3}}]
)
def test_a_task_of_another_artifact_is_refused(artifact, way, change):
    task = json.loads((artifact / "slimformer.json").read_bytes())["task"]
    sign(artifact, task={**task, **change})
    with pytest.raises(ArtifactError, match=r"task settings of artifact|by its manifest the artifact is for"):
        way(artifact)


@pytest.mark.parametrize("way", [load, verify])
def test_another_type_that_config_and_manifest_agree_on_is_refused(artifact, way):
    edit(artifact / "config.json", dtype="bfloat16")
    resum(artifact)
    model = json.loads((artifact / "slimformer.json").read_bytes())["model"]
    sign(artifact, model={**model, "dtype": "bfloat16"})
    with pytest.raises(ArtifactError, match="number types of artifact"):
        way(artifact)


def test_other_settings_for_generating_are_refused(tmp_path):
    save(tmp_path / "out", zoo.build_headed("gpt2"), processor=tiny_tokenizer(), step=STEP)
    path = tmp_path / "out" / "generation_config.json"
    edit(tmp_path / "out" / "config.json", eos_token_id=3)
    if path.is_file():
        edit(path, eos_token_id=3)
    resum(tmp_path / "out")
    with pytest.raises(ArtifactError, match="generation settings of artifact"):
        load(tmp_path / "out")


def test_reading_leaves_a_tokenizer_as_it_was(tmp_path):
    tokenizer = tiny_tokenizer()
    before = tokenizer.backend_tokenizer.to_str()
    hf.BertConfig().save_pretrained(tmp_path)
    read(tmp_path, hf.BertConfig(), tokenizer, None)
    read(tmp_path, hf.BertConfig(), tokenizer, None)
    tokenizer("fine film")
    assert tokenizer.backend_tokenizer.to_str() == before


def test_what_is_recorded_is_the_same_each_time(tmp_path):
    hf.BertConfig().save_pretrained(tmp_path)
    one, other = (read(tmp_path, hf.BertConfig(num_labels=3), tiny_tokenizer(), None) for _ in range(2))
    assert one == other
    of_tokenizer = ("vocabulary", "special tokens", "pieces", "tokens of texts", "tokens of cut and padded texts")
    assert len({one.digests[name] for name in of_tokenizer}) == len(of_tokenizer)
