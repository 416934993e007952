"""Masks on every family: only scores learn, the base stays as it is, and the file gives the same model back."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

import slimformer
from slimformer import models
from slimformer.anatomy import Anatomy, family_of
from slimformer.artifact import MaskFile, MaskStorage, Step, fingerprint, save
from slimformer.bank import MaskBank
from slimformer.errors import AnatomyError, ArtifactError, ConfigError
from slimformer.methods.mask import MaskConfig
from slimformer.methods.mask.scores import Masking, new_head
from slimformer.views import attached
from tests import corpus, zoo

UNPINNED = [family for family in zoo.FAMILIES if family_of(family).heads_pinned_by is None]


def start(family, folder, **settings):
    """A base in a folder, and a model on it with masks."""
    zoo.build(family).save_pretrained(folder)
    torch.manual_seed(0)
    model = models.load_model(folder, zoo.HEADED[family])
    return model, Masking.start(model, MaskConfig(blocks="1-", **settings))


def learn(model, family, masking, steps=3):
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(steps):
        model.base_model(**zoo.inputs_for(family))[0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].shape == other[name].shape, name
        # Compared as bytes, so that the signs of zeros count too.
        assert one[name].numpy().tobytes() == other[name].numpy().tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_only_scores_learn_and_the_file_gives_the_model_back(family, tmp_path):
    model, masking = start(family, tmp_path / "base")
    head = {id(p) for module in new_head(model).values() for p in module.parameters()}
    bits = {at.path: at.view.binary.detach().clone() for at in attached(model)}
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (name.endswith(".scores") or id(parameter) in head), name
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    in_file = fingerprint(tmp_path / "base")
    learn(model, family, masking)
    assert all(torch.equal(frozen[n], p) for n, p in model.named_parameters() if n in frozen)
    assert any(not torch.equal(bits[at.path], at.view.binary) for at in attached(model))
    masking.end(model)
    assert next(attached(model), None) is None
    save(tmp_path / "out", model, base=tmp_path / "base", step=Step(method="mask"), storage=masking.storage())
    assert fingerprint(tmp_path / "base") == in_file
    loaded = slimformer.load(tmp_path / "out").model
    same(state(model), state(loaded))
    inputs = zoo.inputs_for(family)
    with torch.no_grad():
        assert torch.equal(model.eval().base_model(**inputs)[0], loaded.base_model(**inputs)[0])
    file = MaskFile.read(tmp_path / "out" / "mask.safetensors")
    assert file.masked_weights > 0
    # What is stored are the bits of the run, not what a comparison with the base could tell.
    in_base = {name for name in masking.bits if name.startswith(f"{model.base_model_prefix}.")}
    assert file.bits.keys() == in_base
    assert all(torch.equal(file.mask(name).bool(), masking.bits[name]) for name in in_base)
    assert all(not name.startswith(f"{model.base_model_prefix}.") for name in file.whole)


@pytest.mark.slow
@pytest.mark.parametrize("family", UNPINNED)
@pytest.mark.parametrize("anneal", [False, True])
def test_neurons_and_heads_are_removed_for_real(family, anneal, tmp_path):
    settings = {"structured": "both", "sparsity": 0.5, "max_steps": 4, "anneal": anneal}
    model, masking = start(family, tmp_path / "base", **settings)
    objective = masking.objective()
    objective.masks[0].progress.fill_(0.5)
    learn(model, family, masking)
    model.eval()
    inputs = zoo.inputs_for(family)
    with torch.no_grad():
        before = model.base_model(**inputs)[0]
    masking.end(model)
    blocks = Anatomy.of(model).blocks
    full = Anatomy.of(zoo.build(family)).blocks[0]
    assert (blocks[0].ffn_width, blocks[0].heads) == (full.ffn_width, full.heads)
    for block in blocks[1:]:
        assert block.ffn_width == full.ffn_width // 2
        assert block.key_value_heads == max(1, full.key_value_heads // 2)
    with torch.no_grad():
        after = model.base_model(**inputs)[0]
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    save(
        tmp_path / "out",
        model,
        base=tmp_path / "base",
        step=Step(method="mask"),
        storage=masking.storage(),
    )
    loaded = slimformer.load(tmp_path / "out").model
    same(state(model), state(loaded))
    slimformer.artifact.merge(tmp_path / "out", tmp_path / "plain")
    plain = zoo.HEADED[family].from_pretrained(tmp_path / "plain").eval()
    with torch.no_grad():
        torch.testing.assert_close(plain.base_model(**inputs)[0], after, rtol=1e-4, atol=1e-4)


def test_heads_that_cannot_be_taken_are_refused(tmp_path):
    with pytest.raises(AnatomyError, match="heads of `mpnet` cannot be taken"):
        start("mpnet", tmp_path / "base", structured="heads")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"blocks": "3-5"}, "`--blocks` is `3-5`, but the model has 3 blocks, 0 to 2"),
        ({"blocks": "7-"}, "`--blocks` is `7-`"),
        ({"top_down": 4}, "`--top-down` is `4`"),
        ({"bottom_up": 9}, "`--bottom-up` is `9`"),
    ],
)
def test_blocks_a_model_does_not_have_are_refused(settings, said):
    model = zoo.build_headed("bert")
    with pytest.raises(ConfigError, match=said):
        Masking.start(model, MaskConfig(**settings))
    assert next(attached(model), None) is None


def test_a_matrix_starts_the_same_whatever_else_is_masked():
    few, many = zoo.build_headed("bert"), zoo.build_headed("bert")
    Masking.start(few, MaskConfig(blocks="2-", matrices="q,ffn-out", seed=4))
    Masking.start(many, MaskConfig(blocks="0-", seed=4))
    scores = {at.path: at.view.scores for at in attached(many)}
    alone = {at.path: at.view.scores for at in attached(few)}
    assert len(alone) == 2
    assert all(torch.equal(scores[path], each) for path, each in alone.items())
    assert len({float(each.detach().flatten()[0]) for each in scores.values()}) == len(scores)


@pytest.mark.parametrize("init", ["uniform", "magnitude"])
def test_the_share_dropped_at_the_start(init):
    model = zoo.build_headed("bert")
    Masking.start(model, MaskConfig(blocks="0-", initial_sparsity=0.2, init=init))
    bits = torch.cat([at.view.binary.detach().flatten() for at in attached(model)])
    assert float(1 - bits.mean()) == pytest.approx(0.2, abs=0.01)


def test_a_masked_classifier_learns_no_weights():
    model = zoo.build_headed("bert")
    Masking.start(model, MaskConfig(blocks="0-", classifier="masked"))
    assert all(name.endswith(".scores") for name, p in model.named_parameters() if p.requires_grad)
    assert "classifier" in {at.path for at in attached(model)}


def test_bits_of_weights_that_are_zero_in_the_base_are_kept(tmp_path):
    base = zoo.build("bert")
    with torch.no_grad():
        base.encoder.layer[2].intermediate.dense.weight[:, ::2] = 0
    base.save_pretrained(tmp_path / "base")
    model = models.load_model(tmp_path / "base", zoo.HEADED["bert"])
    masking = Masking.start(model, MaskConfig(blocks="1-", seed=3))
    masking.end(model)
    name = "bert.encoder.layer.2.intermediate.dense.weight"
    assert not masking.bits[name][:, ::2].all()
    save(tmp_path / "out", model, base=tmp_path / "base", step=Step(method="mask"), storage=masking.storage())
    file = MaskFile.read(tmp_path / "out" / "mask.safetensors")
    assert torch.equal(file.mask(name).bool(), masking.bits[name])


def test_bits_that_are_not_the_models_are_refused(tmp_path):
    model, masking = start("bert", tmp_path / "base")
    masking.end(model)
    name = next(iter(masking.bits))
    storage = MaskStorage({**masking.bits, name: ~masking.bits[name]})
    with pytest.raises(ArtifactError, match=f"`{name}` of the model is not that of the base times the bits"):
        save(tmp_path / "out", model, base=tmp_path / "base", step=Step(method="mask"), storage=storage)
    assert not (tmp_path / "out").exists()


def test_a_masked_classifier_is_stored_as_bits(tmp_path):
    """Its random weights are drawn again by loading, bank and merge, to the last bit."""
    base = corpus.model_folder(tmp_path / "base")
    torch.manual_seed(0)
    model = hf.AutoModelForSequenceClassification.from_pretrained(base, num_labels=5).eval()
    masking = Masking.start(model, MaskConfig(blocks="1-", classifier="masked", initial_sparsity=0.3))
    masking.end(model)
    described = {"processor": corpus.tokenizer(), "base": base, "step": Step(method="mask")}
    save(tmp_path / "out", model, **described, storage=masking.storage())
    file = MaskFile.read(tmp_path / "out" / "mask.safetensors")
    assert set(file.whole) == {"classifier.bias"}
    assert file.bits["classifier.weight"].numel() <= 1 + 5 * 32 // 8
    expected = model.state_dict()
    assert 0 < int((expected["classifier.weight"] == 0).sum()) < 5 * 32
    assert expected["classifier.weight"].std() == pytest.approx(0.02 * 0.7**0.5, rel=0.2)
    bank = MaskBank(base)
    bank.add("task", tmp_path / "out")
    for again in (slimformer.load(tmp_path / "out").model, bank.use("task")):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())
