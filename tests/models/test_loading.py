"""Whatever way a checkpoint is loaded: its weights, config and tokenizer belong together, or it is refused first."""

from __future__ import annotations

import json
import logging
import shutil
import time

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import slimformer
from slimformer import models
from slimformer.artifact import Step, save
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, CheckpointError, SlimformerError
from slimformer.inference.bench import bench
from slimformer.inference.door import look_up, open_model
from slimformer.inference.pipeline import open_pipeline
from slimformer.integrations.onnx import to_onnx
from tests import corpus, runs, zoo
from tests.artifact.forging import edit, resum

RUN = {"epochs": 1, "max_steps": 1, "batch_size": 4, "quiet": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus.data_folder(tmp_path_factory.mktemp("data"), train=8, dev=4)


def classifier(folder):
    """A checkpoint of two blocks with a head and a tokenizer."""
    return runs.headed(folder, hf.BertForSequenceClassification)


def masked(folder, tmp_path):
    """The folder of a mask on a base like a checkpoint, with that checkpoint's config."""
    base = classifier(tmp_path / "base")
    model = hf.BertForSequenceClassification.from_pretrained(base).eval()
    save(tmp_path / "mask", model, step=Step(method="mask"), base=base, storage="mask")
    shutil.copy(folder / "config.json", tmp_path / "mask")
    resum(tmp_path / "mask")
    return tmp_path / "mask"


def plain(folder, tmp_path):
    """A plain artifact of a checkpoint, with the checkpoint's config."""
    model = hf.BertForSequenceClassification.from_pretrained(classifier(tmp_path / "whole")).eval()
    save(tmp_path / "artifact", model, step=Step(method="finetune"))
    shutil.copy(folder / "config.json", tmp_path / "artifact")
    resum(tmp_path / "artifact")
    return tmp_path / "artifact"


def task(data, tmp_path):
    return {"task": "classification", "data": str(data), "out": str(tmp_path / "out"), **RUN}


def corpora(data, tmp_path):
    return {"corpus": str(data / "train.tsv"), "out": str(tmp_path / "out")}


def with_pieces(folder, tmp_path):
    """A model whose words have parts, as extending needs it, with as many blocks in its config; as a pickle too."""
    blocks = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    pieces = runs.reader(tmp_path / "pieces")
    edit(pieces / "config.json", num_hidden_layers=blocks)
    if not (folder / "model.safetensors").exists():
        as_pickle(pieces)
    return str(pieces)


def as_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


#: Every way of loading the weights of a checkpoint.
WAYS = {
    "bare": lambda folder, *_: models.load_model(folder, hf.AutoModel),
    "with its head": lambda folder, *_: models.load_model(folder, hf.AutoModelForSequenceClassification),
    "under another head": lambda folder, *_: models.load_model(folder, hf.AutoModelForTokenClassification),
    "under a new head": lambda folder, *_: models.load_model(
        folder, hf.AutoModelForSequenceClassification, new_head=True
    ),
    "open_model": lambda folder, *_: open_model(folder),
    "pipeline": lambda folder, *_: open_pipeline(folder, task="classification"),
    "bench": lambda folder, *_: bench(folder, [(1, 4)], seconds=0),
    "export": lambda folder, data, tmp: to_onnx(folder, tmp / "model.onnx"),
    "bank": lambda folder, *_: MaskBank(folder),
    "load a mask": lambda folder, data, tmp: slimformer.load(masked(folder, tmp)),
    "verify a mask": lambda folder, data, tmp: slimformer.verify(masked(folder, tmp)),
    "load": lambda folder, data, tmp: slimformer.load(plain(folder, tmp), check=False),
    "verify": lambda folder, data, tmp: slimformer.verify(plain(folder, tmp)),
    "finetune": lambda folder, data, tmp: slimformer.finetune(model=str(folder), **task(data, tmp)),
    "mask": lambda folder, data, tmp: slimformer.mask(model=str(folder), **task(data, tmp)),
    "quantize": lambda folder, data, tmp: slimformer.quantize(model=str(folder), **task(data, tmp)),
    "distill": lambda folder, data, tmp: slimformer.distill(
        teacher=str(folder), layers=1, hidden=16, heads=2, **corpora(data, tmp), **RUN
    ),
    "extend": lambda folder, data, tmp: slimformer.extend(
        model=with_pieces(folder, tmp),
        new_tokens=1,
        **(corpora(data, tmp) | {"corpus": str(corpus.domain_file(tmp / "text.txt"))}),
    ),
    "trim": lambda folder, data, tmp: slimformer.trim(model=str(folder), **corpora(data, tmp)),
}


@pytest.mark.parametrize("blocks", [1, 3], ids=["left over", "missing"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_of_other_blocks_than_the_config_has_are_refused(way, blocks, tmp_path, data):
    folder = classifier(tmp_path / "model")
    edit(folder / "config.json", num_hidden_layers=blocks)
    with pytest.raises(SlimformerError, match=rf"layer\.{min(blocks, 2)}\.") as caught:
        WAYS[way](folder, data, tmp_path)
    assert isinstance(caught.value, CheckpointError | ArtifactError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_is_loaded_bare_and_with_its_head(family, tmp_path):
    model = zoo.build_headed(family)
    model.save_pretrained(tmp_path)
    for model_class in (type(model), hf.AutoModel):
        loaded = models.load_model(tmp_path, model_class)
        state = loaded.base_model.state_dict()
        for name, tensor in model.base_model.state_dict().items():
            assert torch.equal(tensor, state[name]) if name in state else "pooler" in name


@pytest.mark.parametrize("stored", [hf.T5EncoderModel, hf.T5Model])
def test_a_head_on_a_decoder_that_is_not_known_is_refused(stored, tmp_path):
    stored(zoo.CONFIGS["t5"]()).save_pretrained(tmp_path)
    with pytest.raises(SlimformerError, match=r"T5ForSequenceClassification has a `decoder`, and .* only encoders"):
        models.load_model(tmp_path, hf.AutoModelForSequenceClassification)
    assert type(models.load_model(tmp_path, hf.AutoModel)) is hf.T5EncoderModel


def test_a_checkpoint_without_tokenizer_files_is_refused(tmp_path, data):
    folder = classifier(tmp_path / "model")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"has no files of a tokenizer, such as `tokenizer\.json`"):
        models.load_processor(folder)
    with pytest.raises(CheckpointError, match="has no files of a tokenizer"):
        slimformer.finetune(model=str(folder), **task(data, tmp_path))
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_file_is_a_tokenizer(tmp_path):
    folder = classifier(tmp_path / "model")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    (folder / "vocab.txt").write_text("\n".join(corpus.tokenizer().get_vocab()))
    assert models.load_processor(folder)("good film")["input_ids"]


def test_tokens_beyond_the_vocabulary_are_refused_before_work(tmp_path, data):
    folder = classifier(tmp_path / "model")
    tokenizer = corpus.tokenizer()
    tokenizer.add_tokens(["sequel"])
    tokenizer.save_pretrained(folder)
    message = r"has tokens up to number 25, and the model knows 25"
    for way in ("open_model", "pipeline", "finetune", "distill", "trim"):
        with pytest.raises(CheckpointError, match=message):
            WAYS[way](folder, data, tmp_path)
    model = hf.BertForSequenceClassification.from_pretrained(folder)
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path / "out", model, processor=tokenizer, step=Step(method="finetune"))
    assert not (tmp_path / "out").exists()


def test_a_pickle_is_refused_before_work(tmp_path, data):
    folder = classifier(tmp_path / "model")
    as_pickle(folder)
    message = r"keeps its weights as a pickle, `pytorch_model\.bin`.*start from what `save_pretrained` writes"
    for way in (way for way in WAYS if way not in ("load a mask", "verify a mask", "load", "verify")):
        with pytest.raises(SlimformerError, match=message):
            WAYS[way](folder, data, tmp_path)
    with pytest.raises(CheckpointError, match=message):
        look_up(folder)
    assert not (tmp_path / "out").exists()


HUGE = {
    "num_hidden_layers": 10_000_000,
    "num_labels": 1_000_000_000,
    "num_labels as a float": 1e9,
    "vocab_size": 1_000_000_000,
    "intermediate_size": 1_000_000_000,
    "max_position_embeddings": 1_000_000_000,
    "type_vocab_size": 100_000_000,
}


@pytest.mark.parametrize("key", HUGE)
def test_impossible_sizes_are_refused_quickly(key, tmp_path):
    folder = classifier(tmp_path / "model")
    edit(folder / "config.json", **{key.partition(" ")[0]: HUGE[key]})
    start = time.monotonic()
    done = runs.run("predict", folder, "a film", "--task", "classification")
    done.refused("config.json")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_labels"])
def test_inspect_refuses_impossible_counts(key, tmp_path):
    folder = classifier(tmp_path / "model")
    edit(folder / "config.json", **{key: HUGE[key]})
    runs.run("inspect", folder).refused(f"asks for `{key}` {HUGE[key]:,}")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"hidden_size": ' + "9" * 5_000 + "}"], ids=["deep", "long"])
def test_a_config_that_json_chokes_on_is_refused(text, tmp_path):
    folder = classifier(tmp_path / "model")
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        models.load_config(folder)


def test_an_index_that_leads_out_of_the_folder_is_not_followed(tmp_path):
    folder = classifier(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "elsewhere.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "../elsewhere.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"names the file `\.\./elsewhere\.safetensors`, which is not in its"):
        open_model(folder)


def test_what_transformers_says_of_a_config_does_not_reach_the_terminal(tmp_path):
    folder = classifier(tmp_path / "checkpoint")
    edit(folder / "config.json", pad_token_id=900)
    records: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = records.append
    logger = logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        assert models.load_config(folder).pad_token_id == 900
    finally:
        logger.removeHandler(listener)
    assert not records


def test_a_head_that_calls_its_base_differently_is_no_trained_head_of_another_class(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "vocab_size": 40}
    hf.LlamaForQuestionAnswering(hf.LlamaConfig(**sizes, num_hidden_layers=1)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no trained head: its weights lack `score\.weight`"):
        models.load_model(tmp_path, hf.AutoModelForSequenceClassification, whole=True)
    assert models.load_model(tmp_path, hf.AutoModelForSequenceClassification).score.weight is not None
    assert type(models.load_model(tmp_path, hf.AutoModel, whole=True)) is hf.LlamaModel
