"""`quantize` from end to end: what is evaluated, what is saved, where it starts from, and going on after a stop."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from safetensors.torch import load_file

import slimformer
from slimformer import quantize
from slimformer.artifact import read_manifest
from slimformer.errors import ArtifactError, ConfigError
from slimformer.methods.method import RunOptions
from slimformer.methods.quantize import QuantizeConfig
from slimformer.methods.quantize.method import Quantize
from slimformer.methods.quantize.student import quantize_numbers
from slimformer.objectives import TermObjective
from slimformer.tasks import get_task
from slimformer.views import bake, packed_weights, quantized_weights, rounding_of
from slimformer.views.rounding import in_floats
from tests import corpus, runs, zoo
from tests.conftest import SHARED

DATA = SHARED / "data"
QUICK = {"max_steps": 3, "batch_size": 8, "lr": 1e-3, "log_every": 1, "quiet": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return corpus.model_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus.data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tuned(base, data, tmp_path_factory):
    """A fine-tuned model that knows its task well."""
    folder = tmp_path_factory.mktemp("tuned") / "tuned"
    settings = {"epochs": 8, "batch_size": 16, "lr": 3e-3, "quiet": True}
    result = slimformer.finetune(model=base, task="classification", data=data, out=folder, **settings)
    assert result.metrics["accuracy"] > 0.95
    return folder


def run(tuned, data, out=None, **settings):
    return quantize(model=tuned, task="classification", data=data, out=out, **{**QUICK, **settings})


def levels(weight):
    return max(len(row.unique()) for row in weight)


@pytest.mark.slow
def test_what_is_evaluated_is_quantized_and_what_is_saved_is_what_was_evaluated(tuned, data, tmp_path):
    result = run(tuned, data, tmp_path / "out", max_steps=40, epochs=6, batch_size=16)
    assert result.metrics["accuracy"] > 0.9
    model = result.model
    assert not model.training
    rounding = rounding_of(model)
    assert rounding is not None
    assert model.bert.embeddings.dropout.p == 0.1  # taken while learning, and given back
    assert (rounding.bits, rounding.per, rounding.clip, rounding.symmetric) == (8, "token", None, True)
    for path, module in model.named_modules():
        quantized = isinstance(module, torch.nn.Linear) and path != "classifier"
        if quantized or path.endswith("word_embeddings"):
            assert levels(module.weight) <= 3, path
    assert levels(model.classifier.weight) > 3
    loaded = slimformer.load(tmp_path / "out")
    # What is loaded answers as what was evaluated, to the last bit where it computes with floats too.
    assert rounding_of(loaded.model) == rounding
    batch = result.processor(["the film was very good", "a dull plot"], return_tensors="pt", padding=True)
    with torch.no_grad():
        assert torch.allclose(loaded.model(**batch).logits, model(**batch).logits, atol=1e-3)
    with torch.no_grad(), in_floats(loaded.model):
        assert torch.equal(loaded.model(**batch).logits, model(**batch).logits)
    assert loaded.manifest.metrics == {"classification/dev": result.metrics}
    assert [step.method for step in loaded.manifest.steps] == ["finetune", "quantize"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert not any("slimformer" in name for name in load_file(tmp_path / "out" / "packed.safetensors"))


def test_the_model_goes_by_codes_and_small_floats(tuned, data):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tuned)
    method = Quantize(QuantizeConfig(model=str(tuned)), RunOptions())
    method.model, method.data = model, get_task("classification").load(data)
    assert isinstance(method.prepare(model), TermObjective)
    method.finish()
    packed = packed_weights(model)
    assert len(packed) == 2 * 6 + 2
    for name, tensor in model.state_dict().items():
        expected = packed[name].weight() if name in packed else tensor.half().float()
        assert torch.equal(tensor, expected), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"kd": "none"},
        {"kd": "hidden", "weights": "binary"},
        {"kd": "score", "weights": "4", "granularity": "group", "group_size": 5},
        {"kd": "output+map", "weights": 2, "embedding": "8", "activations": "none"},
        {"kd": "map", "weights": 3, "granularity": "matrix"},
        {"kd": "mha", "weights": "8", "asymmetric": True, "distil_layers": "every-2"},
        {"balance": "auto", "accumulation": 2},
        {"stages": 2, "reference": True},
        {"weights": "float", "distil_layers": "0", "mean_over_classes": True, "temperature": 2.0},
        {"gradient_checkpointing": True, "dropout": True},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_every_setting_runs(tuned, data, settings):
    result = run(tuned, data, **settings)
    assert result.metrics["accuracy"] == runs.accuracy_by_hand(result.model, result.processor, data / "dev.tsv")
    parts = {name for entry in result.log for name in entry}
    assert ("soft_labels" in parts) == (settings.get("kd") != "none")
    assert (rounding_of(result.model) is None) == (settings.get("activations") == "none")
    assert not any("slimformer" in name for name in result.model.state_dict())


@pytest.mark.slow
def test_gradient_checkpointing_changes_nothing(tuned, data):
    settings = {"max_steps": 2, "weight_decay": 0.0}
    plain, spared = (run(tuned, data, gradient_checkpointing=each, **settings).model for each in (False, True))
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, spared.state_dict()[name]), name


@pytest.mark.slow
def test_a_bare_base_is_fine_tuned_first(base, data, tmp_path):
    result = quantize(model=base, task="classification", data=data, out=tmp_path / "out", **QUICK)
    assert result.folder == tmp_path / "out"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.finetuned"]
    manifest = read_manifest(tmp_path / "out")
    assert [step.method for step in manifest.steps] == ["finetune", "quantize"]
    assert read_manifest(tmp_path / "out.finetuned").steps[-1].config["lr"] == 1e-4
    in_memory = quantize(model=base, task="classification", data=data, **QUICK)
    assert in_memory.folder is None
    assert in_memory.metrics == result.metrics
    again = quantize(model=base, task="classification", data=data, out=tmp_path / "out", resume=True, **QUICK)
    assert again.metrics == result.metrics
    with pytest.raises(ArtifactError, match="exists"):
        quantize(model=base, task="classification", data=data, out=tmp_path / "out", **QUICK)


def test_a_head_for_something_else_is_no_teacher(tuned, data, tmp_path):
    for split in ("train", "dev"):
        lines = (data / f"{split}.tsv").read_text().replace("\tyes", "\tgood").replace("\tno", "\tbad")
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / f"{split}.tsv").write_text(lines)
    quantize(model=tuned, task="classification", data=tmp_path / "other", out=tmp_path / "out", **QUICK)
    manifest = read_manifest(tmp_path / "out")
    assert [step.method for step in manifest.steps] == ["finetune", "finetune", "quantize"]


def test_shorthands_and_terms_train_the_same_weights(tuned, data):
    one = run(tuned, data, kd="output+map", beta=0.3)
    terms = {"logits": 1, "hidden[embeddings,all]": 1, "attention-output[all]": 1, "attention-maps[all]": 0.3}
    other = run(tuned, data, terms=terms)
    weights = one.model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in other.model.state_dict().items())
    assert [entry["loss"] for entry in one.log if "loss" in entry] == [
        entry["loss"] for entry in other.log if "loss" in entry
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"terms": "logits:1, labels:0.5"}, {"soft_labels", "labels"}),
        ({"terms": "labels:1, relations:0.1"}, {"labels", "qq", "kk", "vv"}),
        ({"terms": "logits, mha[all], attention-scores[all]", "balance": "auto"}, {"soft_labels", "mha", "score"}),
        ({"terms": "logits, hidden[all]:0.5", "stages": 2, "first_stage": 2}, {"soft_labels"}),
        ({"terms": "logits, pooled[cls], minilm-v1", "accumulation": 2}, {"soft_labels", "pooled", "map", "vv"}),
    ],
)
def test_objectives_that_are_put_together(tuned, data, settings, parts):
    result = run(tuned, data, **settings)
    last = [entry for entry in result.log if "loss" in entry][-1]
    assert parts <= last.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"terms": "logit:1"}, r"there is no term `logit` \(do you mean `logits`\?\)"),
        ({"terms": "mlm:1"}, "learns from masked inputs, which this method does not prepare"),
        ({"terms": "logits, mha", "balance": "auto"}, "`balance` is `auto`, and `terms` has 1 of"),
        ({"terms": "hidden", "stages": 2}, "has nothing for the second one; add `logits:1`"),
        ({"terms": "logits", "kd": "map"}, "`terms` and `kd` both say what is learned"),
    ],
)
def test_objectives_that_cannot_be(tuned, data, settings, message):
    with pytest.raises(ConfigError, match=message):
        run(tuned, data, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"balance": "auto"}, {"stages": 2, "first_stage": 4}], ids=str)
def test_a_run_that_was_stopped_ends_with_the_same_weights(tuned, data, tmp_path, monkeypatch, more):
    settings = {"max_steps": 8, "save_every": 3, "threads": 1, **more}
    run(tuned, data, tmp_path / "whole", **settings)
    asked = []
    ask = TermObjective.__call__

    def stop(self, model, inputs, totals=None):
        asked.append(1)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return ask(self, model, inputs, totals)

    monkeypatch.setattr(TermObjective, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tuned, data, tmp_path / "stopped", **settings)
    run(tuned, data, tmp_path / "stopped", resume=True, **settings)
    assert len(asked) == 6 + 5  # steps 4 and 5 were lost, 4 to 8 came again
    whole, stopped = (load_file(tmp_path / name / "packed.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(weight, stopped[name]) for name, weight in whole.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"granularity": "group"}, "need a size"),
        ({"group_size": 8}, "need a size"),
        ({"balance": "auto", "kd": "map"}, "nothing to balance"),
        ({"stages": 2, "kd": "none"}, "without a teacher"),
        ({"stages": 2, "max_steps": None}, "when the second one begins"),
        ({"first_stage": 3}, "only one"),
        ({"packing": "small", "weights": "4"}, "no smaller layout for `weights` `int4`"),
        ({"distil_layers": "some"}, "`distil_layers` is `some`"),
        ({"distil_layers": "7"}, "has 2 blocks"),
        ({"weights": "5"}, "`weights` is `5`: there is no format `5`; known: ternary, .*, int8, float"),
        ({"kd": "maps"}, "`kd` is `maps`"),
    ],
)
def test_impossible_settings_are_named(tuned, data, settings, message):
    with pytest.raises(ConfigError, match=message):
        run(tuned, data, **settings)


def test_reference_settings_can_be_overruled():
    published = QuantizeConfig(reference=True)
    assert (published.granularity, published.activation_scale, published.activation_clip) == ("matrix", "tensor", 2.5)
    assert QuantizeConfig(reference=True, granularity="row").granularity == "row"
    assert QuantizeConfig().granularity == "row"


@pytest.mark.parametrize("family", ["gpt2", "xlm-roberta", "gpt_neox"])
def test_tied_tables_stay_tied(family):
    model = quantize_numbers(zoo.build_headed(family), QuantizeConfig())
    inputs = zoo.inputs_for(family)
    with torch.no_grad():
        logits = model(**inputs).logits
    stored = quantized_weights(model)
    tied = model.get_output_embeddings() is not None and bool(model.config.tie_word_embeddings)
    assert any(weight.shared_with for weight in stored) == tied
    baked = bake(copy.deepcopy(model))
    with torch.no_grad():
        assert torch.equal(baked(**inputs).logits, logits)


CASES = {
    "stsb": ("stsb", "reader", ["--max-length", 32]),
    "ud-pos": ("ud-english-ewt", "reader", []),
    "arc": ("arc", "reader", ["--max-length", 32]),
    "xquad": ("xquad", "reader", ["--max-length", 128, "--language", "en"]),
    "tinyshakespeare": ("tinyshakespeare", "stories", ["--max-length", 32]),
    "wikitext-2": ("wikitext-2", "speller", []),
    "fashion-mnist": ("fashion-mnist", "viewer", []),
}


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real data in {DATA}")
@pytest.mark.parametrize("task", CASES)
def test_every_kind_of_task_on_real_rows(task, tmp_path, request):
    folder, base, flags = CASES[task]
    builders = {"reader": runs.reader, "viewer": runs.viewer, "speller": corpus.model_folder}
    model = request.getfixturevalue("stories") if base == "stories" else builders[base](tmp_path / "base")
    settings = {str(flag)[2:].replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    result = quantize(
        model=model,
        task=task,
        data=DATA / folder,
        out=tmp_path / "out",
        limit=16,
        **{**QUICK, "max_steps": 2},
        **settings,
    )
    assert all(math.isfinite(value) for value in result.metrics.values())
    losses = [entry for entry in result.log if "train_loss" in entry]
    assert losses
    assert math.isfinite(losses[-1]["train_loss"])
    # The language models are their own teachers; the others had no head and were fine-tuned first.
    assert (tmp_path / "out.finetuned").exists() == (base != "stories")


def test_the_command_reads_its_flags(tuned, data, tmp_path):
    flags = {
        "--model": tuned,
        "--task": "classification",
        "--data": data,
        "--weights": 4,
        "--embedding": "ternary",
        "--activations": "int8",
        "--granularity": "group",
        "--group-size": 16,
        "--stages": 2,
        "--kd": "map+output",
        "--max-steps": 2,
        "--batch-size": 8,
        "--out": tmp_path / "out",
    }
    done = runs.run("quantize", *(word for flag in flags.items() for word in flag), "--quiet", "--json").json
    assert done["steps"] == 2
    config = read_manifest(tmp_path / "out").steps[-1].config
    assert (config["weights"], config["embedding"], config["group_size"], config["stages"]) == (
        "int4",
        "ternary",
        16,
        2,
    )
