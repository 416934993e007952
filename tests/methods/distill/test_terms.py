"""Distilling with objectives that are put together: `--terms`."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import slimformer
from slimformer import Anatomy, artifact
from slimformer.errors import ConfigError
from slimformer.objectives import Term
from slimformer.objectives.recording import Request
from slimformer.registry import TERMS
from tests import corpus, zoo
from tests.forking import killed_when
from tests.methods.distill.test_distill import QUICK, distill, learned, place  # noqa: F401 (a fixture)
from tests.runs import run


def headed(folder, model):
    model.save_pretrained(folder)
    corpus.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "parts"),
    [
        ("relations:1, mlm:0.1", ["qq", "kk", "vv", "mlm"]),
        ("hidden[all]:0.1, attention-maps[all]:1", ["hidden", "map"]),
        ("hidden[embeddings,0], attention-scores[all], mha[all]", ["hidden", "score", "mha"]),
        ({"relations[qk,vv,heads=2]": 1, "pooled[cls]": 0.5}, ["qk", "vv", "pooled"]),
        (["minilm-v1:1", {"mlm": 0.2}], ["map", "vv", "mlm"]),
    ],
    ids=str,
)
def test_joint_objectives(place, terms, parts):  # noqa: F811
    result = distill(place, terms=terms, layers=2, max_steps=20, lr=1e-2)
    assert result.losses.keys() == {"loss", *parts}
    assert learned(result) > 0.02


def test_relations_with_soft_labels(place, tmp_path):  # noqa: F811
    teacher = headed(tmp_path / "teacher", zoo.build_headed("bert"))
    result = distill(place, teacher=teacher, terms="relations:1, logits[temperature=2]:0.5", max_steps=20, lr=1e-2)
    assert type(result.model).__name__ == "BertForSequenceClassification"
    assert result.losses.keys() == {"loss", "qq", "kk", "vv", "soft_labels"}
    losses = [entry for entry in result.log if "loss" in entry]
    for entry in losses:
        summed = entry["qq"] + entry["kk"] + entry["vv"] + 0.5 * entry["soft_labels"]
        assert entry["loss"] == pytest.approx(summed, rel=1e-4)


@pytest.mark.parametrize(
    "way",
    [
        {"objective": "soft-labels", "temperature": 2.0},
        pytest.param({"terms": "relations, logits:0.5"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_soft_labels_of_a_teacher_that_gives_several(place, tmp_path, way):  # noqa: F811
    """Each label has a probability of its own: the loss is that of independent answers, and may say yes to all."""
    torch.manual_seed(0)
    config = hf.BertConfig(**zoo.TEXT, num_labels=5, problem_type="multi_label_classification")
    teacher = headed(tmp_path / "teacher", zoo.enliven(hf.BertForSequenceClassification(config)))
    result = distill(place, teacher=teacher, **way, out=tmp_path / "out", max_steps=60, lr=1e-2)
    assert result.model.config.problem_type == "multi_label_classification"
    losses = [entry["soft_labels"] for entry in result.log if "soft_labels" in entry]
    assert sum(losses[-4:]) < 0.99 * sum(losses[:4])  # most of it is the entropy of the teacher
    # One label's cross-entropy of yes and no, never that of one class among five.
    assert max(losses) < 2.0
    assert artifact.verify(tmp_path / "out").max_difference == 0


@pytest.mark.slow
def test_a_head_for_masked_tokens_is_left_behind_unless_the_student_has_one(place, tmp_path):  # noqa: F811
    result = distill(place, terms="relations, mlm", out=tmp_path / "bare", max_steps=40, lr=1e-2)
    assert type(result.model).__name__ == "BertModel"
    assert Anatomy.of(result.model).blocks[-1].down.weight.any()  # language modelling trains the last block too
    assert result.losses["mlm"] < result.log[0]["mlm"] * 0.95
    assert not any("head" in name or "dense.0" in name for name in load_file(tmp_path / "bare" / "model.safetensors"))
    assert artifact.verify(tmp_path / "bare").max_difference == 0
    sizes = {**zoo.TEXT, "hidden_size": 24, "num_hidden_layers": 1}
    torch.manual_seed(0)
    student = headed(tmp_path / "student", hf.BertForMaskedLM(hf.BertConfig(**sizes)))
    shapeless = {"layers": None, "hidden": None, "heads": None}
    result = distill(place, terms="relations, mlm", student=student, out=tmp_path / "kept", **shapeless, max_steps=20)
    assert type(result.model).__name__ == "BertForMaskedLM"
    before, after = (load_file(folder / "model.safetensors") for folder in (student, tmp_path / "kept"))
    name = "cls.predictions.transform.dense.weight"
    assert not torch.equal(before[name], after[name])  # its own head learns along
    assert type(hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "kept")) is type(result.model)


@pytest.mark.slow
def test_soft_labels_of_a_masked_language_model_need_a_mask_token(place, tmp_path):  # noqa: F811
    teacher = headed(tmp_path / "teacher", zoo.enliven(hf.BertForMaskedLM(hf.BertConfig(**zoo.TEXT))))
    result = distill(place, teacher=teacher, objective="soft-labels", max_steps=20, lr=1e-2)
    assert type(result.model).__name__ == "BertForMaskedLM"
    assert learned(result) > 0.02
    settings = json.loads((teacher / "tokenizer_config.json").read_text())
    (teacher / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": None}))
    with pytest.raises(ConfigError, match="has no mask token to learn under; leave out `logits`"):
        distill(place, teacher=teacher, objective="soft-labels")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "model"),
    [
        ("relations, mlm", hf.BertModel),
        ("logits", hf.BertForMaskedLM),
        ("relations, logits:0.5", hf.RobertaForSequenceClassification),
        ("hidden[embeddings,0], pooled[mean]", hf.DistilBertModel),
        ("minilm-v1", hf.DebertaV2Model),
    ],
)
def test_every_objective_with_factorised_embeddings(place, tmp_path, terms, model):  # noqa: F811
    config = zoo.CONFIGS[model.config_class.model_type](pad_token_id=0)
    torch.manual_seed(0)
    teacher = headed(tmp_path / "teacher", zoo.enliven(model(config)))
    settings = {"terms": terms, "embedding": 8, "max_steps": 20, "lr": 1e-2}
    result = distill(place, teacher=teacher, **settings, out=tmp_path / "out")
    assert Anatomy.of(result.model).word_embedding.shape == (99, 8)
    assert learned(result) > 0.02
    assert artifact.verify(tmp_path / "out").max_difference == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decoders_learn_the_next_token(place, tmp_path, family):  # noqa: F811
    teacher = headed(tmp_path / "teacher", zoo.build(family))
    result = distill(place, teacher=teacher, terms="relations:0.1, clm:1", heads=2, max_steps=30, lr=1e-2)
    assert result.losses["clm"] < result.log[0]["clm"] * 0.9
    assert type(result.model).__name__ in ("GPT2Model", "LlamaModel")
    with pytest.raises(ConfigError, match=r"`mlm` predicts tokens from both sides, and .* use `clm`"):
        distill(place, teacher=teacher, terms="mlm", heads=2)


@pytest.mark.slow
def test_shorthands_and_terms_train_the_same_weights(place):  # noqa: F811
    settings = {"relations": "qk,vv", "relation_heads": 2}
    one = distill(place, **settings, pooled="mean", pooled_weight=0.5)
    other = distill(place, **settings, terms="relations:1, pooled[mean]:0.5")
    third = distill(place, terms="relations[qk,vv,heads=2], pooled:0.5")
    for model in (other.model, third.model):
        assert all(torch.equal(weight, one.model.state_dict()[name]) for name, weight in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("terms", ["relations, mlm", "hidden[all], attention-scores[all], pooled"])
def test_accumulation_changes_nothing(place, terms):  # noqa: F811
    still = {"teacher": place / "still", "terms": terms, "layers": 2}
    if not (place / "still").exists():
        model = zoo.build("bert")
        model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
        headed(place / "still", model)
    whole, parts = (distill(place, **still, accumulation=accumulation) for accumulation in (1, 4))
    for one, other in zip(whole.log, parts.log, strict=True):
        names = [name for name in one if name in ("loss", "qq", "mlm", "hidden", "score", "pooled")]
        assert {name: other[name] for name in names} == pytest.approx({name: one[name] for name in names}, rel=1e-4)


@pytest.mark.slow
def test_killed_and_resumed_with_masks_is_undisturbed(place, tmp_path):  # noqa: F811
    shape = ["--layers", 1, "--hidden", 24, "--heads", 4, "--max-length", 16]
    steps = ["--max-steps", 40, "--batch-size", 8, "--save-every", 7, "--threads", 1]
    bare = ["distill", "--teacher", place / "teacher", "--corpus", place / "text.txt", *shape, *steps]
    command = [*bare, "--terms", "relations:1, mlm:0.5"]
    whole = run(*command, "--out", tmp_path / "whole", "--json").json
    out, training = tmp_path / "out", tmp_path / "out.training"
    assert killed_when((training / "checkpoint-14").exists, *command, "--out", out)
    run(*bare, "--out", out, "--resume").refused("had `--terms` = `relations:1, mlm:0.5`")
    done = run(*command, "--out", out, "--resume", "--json").json
    assert done["losses"] == whole["losses"]
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())


class Lengths(Term):
    """The length of the last hidden states: a term that slimformer does not know of."""

    part = "lengths"

    def student_request(self):
        return Request.of((), (), "last_hidden")

    teacher_request = student_request

    def compare(self, teacher, student, inputs):
        apart = teacher["last_hidden"].norm(dim=-1) - student["last_hidden"].norm(dim=-1)
        per_text = (apart.square() * inputs["attention_mask"]).sum(1) / inputs["attention_mask"].sum(1)
        return self.mean(per_text.mean(), inputs)


@pytest.fixture
def toy():
    TERMS.add("toy", Lengths, "length of the last hidden states")
    yield
    TERMS.remove("toy")


@pytest.mark.slow
def test_a_term_from_outside(place, tmp_path, toy):  # noqa: F811
    shape = ["--layers", 1, "--hidden", 24, "--heads", 4, "--max-length", 16, "--max-steps", 30, "--batch-size", 8]
    files = ["--teacher", place / "teacher", "--corpus", place / "text.txt", "--lr", 1e-2, "--log-every", 1]
    done = run("distill", *files, *shape, "--terms", "toy:1", "--out", tmp_path / "out", "--json").json
    assert done["losses"]["loss"] == pytest.approx(done["losses"]["lengths"])
    result = distill(place, terms="toy:1, relations:0.1", max_steps=30, lr=1e-2)
    assert result.losses["lengths"] < result.log[0]["lengths"] / 2
    assert artifact.read_manifest(tmp_path / "out").steps[-1].config["terms"] == "toy:1"
    settings = tmp_path / "run.yaml"
    settings.write_text(json.dumps({"terms": {"toy": 1, "hidden[all]": 0.1}}))
    run("distill", *files, *shape, "--config", settings, "--out", tmp_path / "yaml", "--json").json  # noqa: B018
    assert artifact.read_manifest(tmp_path / "yaml").steps[-1].config["terms"] == "toy:1, hidden[all]:0.1"


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("relatoins:1", r"there is no term `relatoins` \(do you mean `relations`\?\)"),
        ("labels:1", "needs labels, and a corpus has none"),
        ("logits:1", "without a head"),
        ("attention-maps[all]:1", "has 2 where the teacher has 4"),
        ("hidden[5]:1", "there is no block 5"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_work(place, tmp_path, terms, words):  # noqa: F811
    with pytest.raises(slimformer.errors.SlimformerError, match=words):
        distill(place, out=tmp_path / "out", terms=terms, heads=2)
    assert list(tmp_path.iterdir()) == []
