"""What makes a base the base of a mask: whatever changes its forward is refused, however it was saved is not."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers as hf

from slimformer.artifact import MaskFile, Step, load, merge, save, verify
from slimformer.artifact.layout import MASK
from slimformer.artifact.storage.mask import assemble
from slimformer.artifact.storage.mask_identity import BaseIdentity
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, CheckpointError, SlimformerError
from slimformer.inference.bench import bench
from slimformer.inference.door import open_model
from slimformer.inference.pipeline import open_pipeline
from slimformer.integrations.onnx.sources import find_model
from tests import corpus, zoo

EPSILONS = ("layer_norm_eps", "rms_norm_eps", "norm_eps", "layer_norm_epsilon")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation", "activation_function", "dense_act_fn")
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
#: Activations that are easily taken for one another.
NEAR = {"gelu": "gelu_new", "gelu_new": "gelu", "gelu_pytorch_tanh": "silu", "silu": "gelu", "relu": "gelu"}


def changed_epsilon(config):
    """As two versions of a library differ; DistilBERT's config has none."""
    name = next((name for name in EPSILONS if name in config), None)
    return None if name is None else {name: 1e-6 if config[name] == 1e-5 else 1e-5}


def changed_activation(config):
    (name, *_) = [name for name in ACTIVATIONS if config.get(name) is not None]
    return {name: NEAR[config[name]]}


def changed_heads(config):
    """Half as many heads, twice as wide, so that every tensor keeps its shape where the family allows it."""
    name = next(name for name in HEADS if name in config)
    change = {name: config[name] // 2}
    if "num_key_value_heads" in config:
        change["num_key_value_heads"] = max(1, config["num_key_value_heads"] // 2)
    for width in ("head_dim", "d_kv"):
        if config.get(width):
            change[width] = config[width] * 2
    return change


CHANGES = {"epsilon": changed_epsilon, "activation": changed_activation, "heads": changed_heads}
#: Families whose config has no such setting.
WITHOUT = {("distilbert", "epsilon")}


@pytest.fixture(scope="module", params=zoo.FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def known(family, tmp_path_factory):
    """A base of a family, and its identity to a mask that takes all of it."""
    folder = tmp_path_factory.mktemp(family) / "base"
    model = zoo.build(family)
    model.save_pretrained(folder)
    identity = BaseIdentity.of(folder, model.state_dict(), type(model))
    return family, folder, identity, model


def recognised(known, folder, *, cast=False):
    _, _, identity, model = known
    identity.check(folder, model.state_dict(), type(model), allow_cast=cast)
    return True


def edited(source, folder, change):
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    return folder


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_the_forward_is_seen(known, change, tmp_path):
    """The table of families and changes in `docs/methods/mask.md`."""
    family, base, *_ = known
    settings = CHANGES[change](json.loads((base / "config.json").read_text()))
    assert (settings is None) == ((family, change) in WITHOUT)
    if settings is None:
        return
    with pytest.raises(SlimformerError) as refusal:
        recognised(known, edited(base, tmp_path / "changed", settings))
    # Where norms or keys are as wide as a head, or there is a bias for each, other heads do not even fit the weights.
    fits = change != "heads" or family not in ("qwen3", "gemma", "mpnet", "t5")
    assert ("computes something else" in str(refusal.value)) == fits


def test_the_same_base_is_recognised_however_it_was_saved(known, tmp_path):
    """In shards, under a head, and with settings that change no answer in evaluation."""
    family, base, _, model = known
    assert recognised(known, base)
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert recognised(known, tmp_path / "shards")
    assert recognised(known, edited(base, tmp_path / "dropout", {"attention_dropout": 0.3, "id2label": {0: "a"}}))
    headed = zoo.build_headed(family)
    state = model.state_dict()
    missing, _ = headed.base_model.load_state_dict(state, strict=False)
    assert not missing
    headed.save_pretrained(tmp_path / "headed")
    if headed.base_model.state_dict().keys() >= state.keys():
        assert recognised(known, tmp_path / "headed")
    else:  # a head that goes without the pooler, which this mask takes
        with pytest.raises(ArtifactError, match="the fingerprint of its weights"):
            recognised(known, tmp_path / "headed")


def test_a_cast_base_is_taken_on_request(known, tmp_path):
    _, base, _, model = known
    for dtype in (torch.bfloat16, torch.float16):
        folder = tmp_path / str(dtype)
        type(model).from_pretrained(base, dtype=dtype).save_pretrained(folder)
        with pytest.raises(ArtifactError, match=f"cast to {str(dtype).removeprefix('torch.')}.*--cast-base"):
            recognised(known, folder)
        assert recognised(known, folder, cast=True)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A base with a pooler, a tagger's mask that does without it, and a classifier's that needs it."""
    folder = tmp_path_factory.mktemp("identity")
    corpus.model_folder(folder / "base")
    for name, auto in (("tags", hf.AutoModelForTokenClassification), ("class", hf.AutoModelForSequenceClassification)):
        torch.manual_seed(2)
        model = auto.from_pretrained(folder / "base", num_labels=3).eval()
        with torch.no_grad():
            model.bert.encoder.layer[0].output.dense.weight.mul_(torch.rand(32, 64) > 0.1)
        described = {"base": folder / "base", "processor": corpus.tokenizer(), "step": Step(method="mask")}
        save(folder / name, model, **described, storage="mask")
    return folder


@pytest.mark.parametrize("way", ["load", "verify", "merge", "bank", "open_model", "predict", "bench", "export"])
def test_every_way_takes_a_cast_base_on_request(shelf, way, tmp_path):
    hf.AutoModel.from_pretrained(shelf / "base", dtype=torch.bfloat16).save_pretrained(tmp_path / "cast")
    corpus.tokenizer().save_pretrained(tmp_path / "cast")
    mask, base = shelf / "class", tmp_path / "cast"
    with pytest.raises(ArtifactError, match="cast to bfloat16"):
        ways(mask, base, tmp_path / "out")[way]()
    ways(mask, base, tmp_path / "out", cast_base=True)[way]()


def ways(mask, base, out, **options):
    """Every way to put a mask on a base."""
    return {
        "load": lambda: load(mask, base=base, **options),
        "verify": lambda: verify(mask, base=base, **options),
        "merge": lambda: merge(mask, out, base=base, **options),
        "bank": lambda: MaskBank(base, **options).add("task", mask),
        "open_model": lambda: open_model(mask, base=base, **options),
        "predict": lambda: open_pipeline(mask, base=base, **options)(["good"]),
        "bench": lambda: bench(mask, [(1, 4)], seconds=0, base=base, **options),
        "export": lambda: find_model(mask, base, **options),
    }


@pytest.mark.parametrize("way", ["load", "verify", "merge", "bank"])
@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"layer_norm_eps": 1e-5}, {"num_attention_heads": 2}])
def test_every_way_refuses_another_forward(change, way, shelf, tmp_path):
    base = edited(shelf / "base", tmp_path / "base", change)
    with pytest.raises(ArtifactError, match=r"is not the base of the mask .* computes something else"):
        ways(shelf / "class", base, tmp_path / "out")[way]()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", ["load", "verify", "merge", "bank"])
def test_every_way_takes_the_base_under_another_head(way, shelf, tmp_path):
    hf.BertForMaskedLM.from_pretrained(shelf / "base").save_pretrained(tmp_path / "base")  # without the pooler
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    ways(shelf / "tags", tmp_path / "base", tmp_path / "out")[way]()
    with pytest.raises(ArtifactError, match="is not the base of the mask"):
        ways(shelf / "class", tmp_path / "base", tmp_path / "other")[way]()


def test_a_cast_base_answers_nearly_the_same(shelf, tmp_path):
    hf.BertModel.from_pretrained(shelf / "base", dtype=torch.bfloat16).save_pretrained(tmp_path / "base")
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    batch = corpus.tokenizer()(["the film was good"], return_tensors="pt")
    with pytest.raises(ArtifactError, match="cast to bfloat16"):
        MaskBank(tmp_path / "base").add("class", shelf / "class")
    bank = MaskBank(tmp_path / "base", cast_base=True)
    bank.add("class", shelf / "class")
    merge(shelf / "class", tmp_path / "plain", base=tmp_path / "base", cast_base=True)
    with torch.no_grad():
        expected = load(shelf / "class").model(**batch).logits
        models = load(shelf / "class", base=tmp_path / "base", cast_base=True).model, bank.use("class")
        for model in (*models, load(tmp_path / "plain").model):
            torch.testing.assert_close(model(**batch).logits, expected, rtol=0.05, atol=0.02)


def test_weights_that_were_stored_in_16_bits_may_be_stored_in_32(tmp_path):
    """The values are the same, so this is no cast."""
    model = zoo.build("bert").bfloat16()
    model.save_pretrained(tmp_path / "half")
    identity = BaseIdentity.of(tmp_path / "half", model.state_dict(), type(model))
    model.float().save_pretrained(tmp_path / "single")
    identity.check(tmp_path / "single", model.state_dict(), type(model), allow_cast=False)


def test_the_identity_is_a_small_part_of_the_file(shelf):
    identity = MaskFile.read(shelf / "class" / MASK).base.identity
    assert identity is not None
    assert len(identity.model_dump_json()) < 8000


def test_another_base_from_the_hub_is_refused_after_the_right_one_was_taken(shelf, tmp_path, monkeypatch):
    """Of what was found to be the base, the files are remembered and not that there was one."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name, change in (("right", {}), ("wrong", {"hidden_act": "relu"})):
        cache = tmp_path / f"models--someone--{name}"
        edited(shelf / "base", cache / "snapshots" / ("0" * 40), change)
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("0" * 40)
    MaskBank("someone/right").add("task", shelf / "class")
    with pytest.raises(ArtifactError, match=r"is not the base of the mask .* computes something else"):
        MaskBank("someone/wrong").add("task", shelf / "class")


def test_what_a_base_has_too_much_is_refused_under_a_head_that_calls_it_differently(tmp_path):
    """Llama's head for question answering keeps the base under another name than its other heads do."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "vocab_size": 40}
    base = hf.LlamaForQuestionAnswering(hf.LlamaConfig(**sizes, num_hidden_layers=2))
    base.save_pretrained(tmp_path)
    whole = assemble(tmp_path, hf.LlamaForSequenceClassification, hf.LlamaConfig(**sizes, num_hidden_layers=2))
    state = base.base_model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in whole.base_model.state_dict().items())
    with pytest.raises(CheckpointError, match=r"has a weight `layers\.1\..*` that has no place"):
        assemble(tmp_path, hf.LlamaForSequenceClassification, hf.LlamaConfig(**sizes, num_hidden_layers=1))
