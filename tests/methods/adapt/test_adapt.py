"""Further pre-training from settings to a checkpoint that anyone can load."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import slimformer
from slimformer import Anatomy, artifact
from slimformer.errors import ArtifactError, CheckpointError, ConfigError, DataError, TrainingError
from slimformer.methods.adapt.config import AdaptConfig
from slimformer.methods.adapt.measuring import forgetting
from slimformer.methods.adapt.method import Adapt
from slimformer.methods.method import RunOptions
from slimformer.methods.run import run_phase
from slimformer.methods.then import measured_in_corpus
from slimformer.models.sentence import SentenceSettings
from slimformer.objectives import Models
from slimformer.objectives.terms.pretraining.weights import WeightDistance
from tests import corpus, forking, runs, zoo

QUICK = {"max_steps": 4, "batch_size": 8, "max_length": 16, "lr": 1e-3, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny base without a head, one with it, a decoder, and a text."""
    folder = tmp_path_factory.mktemp("adapt")
    zoo.build("bert").save_pretrained(folder / "base")
    corpus.tokenizer().save_pretrained(folder / "base")
    runs.headed(folder / "headed", hf.BertForMaskedLM)
    runs.decoder(folder / "decoder")
    rows = (corpus.data_folder(folder / "data") / "train.tsv").read_text().splitlines()[1:]
    (folder / "text.txt").write_text("\n".join(row.split("\t")[0] for row in rows) + "\n")
    return folder


def settings(place, **changes):
    warm_up = {} if "model" in changes or changes.get("trains") == "head" else {"head_steps": 3}
    return {"model": place / "base", "corpus": [str(place / "text.txt")], **QUICK, **warm_up, **changes}


def adapt(place, **changes):
    return slimformer.adapt(**settings(place, **changes))


def state_of(config: AdaptConfig) -> Adapt:
    """A run that has begun, its phases done."""
    state = Adapt(config, RunOptions(quiet=True))
    for phase in state.phases():
        run_phase(phase, state.options)
    state.start()
    return state


def config_of(place, **changes) -> AdaptConfig:
    values = {name: value for name, value in settings(place, **changes).items() if name != "quiet"}
    return AdaptConfig.make(values)


def weights_of(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in Anatomy.of(model).base.state_dict().items()}


@pytest.mark.slow
def test_every_round_starts_from_the_base_and_the_warmed_head(place, tmp_path):
    config = config_of(place, rounds=2, out=str(tmp_path / "out"))
    state = Adapt(config, RunOptions(quiet=True))
    base = weights_of(hf.AutoModel.from_pretrained(place / "base"))
    heads = []
    for phase in state.phases():
        inner = Adapt(phase.config, RunOptions(quiet=True))
        assert not inner.phases()
        inner.start()
        started = weights_of(inner.model)
        assert all(torch.equal(value, base[name]) for name, value in started.items())
        heads.append({name: value.clone() for name, value in inner.model.cls.state_dict().items()})
        run_phase(phase, state.options)
    state.start()
    assert all(torch.equal(value, base[name]) for name, value in weights_of(state.model).items())
    heads.append(state.model.cls.state_dict())
    new, *warmed = heads
    assert len(warmed) == 3
    for head in warmed:
        assert all(torch.equal(head[name], warmed[0][name]) for name in head)
    assert any(not torch.equal(new[name], warmed[0][name]) for name in new)


@pytest.mark.slow
def test_training_the_head_alone_leaves_the_rest(place, tmp_path):
    result = adapt(place, trains="head", rounds=0, keep_head=True, out=tmp_path / "head")
    base = weights_of(hf.AutoModel.from_pretrained(place / "base"))
    after = weights_of(result.model)
    assert all(torch.equal(value, base[name]) for name, value in after.items())
    assert result.metrics["drift"] == 0
    assert result.metrics["reconstruction"] < result.metrics["reconstruction_before"]


@pytest.mark.slow
def test_the_result_is_what_the_base_was(place, tmp_path):
    result = adapt(place, out=tmp_path / "out", max_steps=30, lr=3e-3)
    assert type(result.model) is hf.BertModel
    assert result.metrics["reconstruction"] < result.metrics["reconstruction_before"]
    assert result.metrics["drift"] > 0
    assert artifact.verify(tmp_path / "out").max_difference == 0
    manifest = artifact.read_manifest(tmp_path / "out")
    assert [step.method for step in manifest.steps] == ["adapt"]
    assert manifest.base.name == "base"
    before, after = (load_file(folder / "model.safetensors") for folder in (place / "base", tmp_path / "out"))
    assert before.keys() == after.keys()
    assert torch.equal(before["pooler.dense.weight"], after["pooler.dense.weight"])
    assert not torch.equal(before["embeddings.word_embeddings.weight"], after["embeddings.word_embeddings.weight"])
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.warmup", "out.round-0"}


def test_a_head_that_is_there_is_kept_and_not_warmed_up(place, tmp_path):
    result = adapt(place, model=place / "headed", rounds=0, out=tmp_path / "out")
    assert type(result.model) is hf.BertForMaskedLM
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "predicts"), [("bert", True), ("electra", False)])
def test_of_classes_for_pre_training_those_that_predict_tokens_have_a_head(place, tmp_path, family, predicts):
    head = hf.BertForPreTraining if predicts else hf.ElectraForPreTraining
    head(zoo.CONFIGS[family]()).save_pretrained(tmp_path / "base")
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    steps = {} if predicts else {"head_steps": 2}
    result = adapt(place, model=tmp_path / "base", rounds=0, out=tmp_path / "out", **steps)
    assert type(result.model) is (hf.BertForMaskedLM if predicts else hf.ElectraForPreTraining)
    assert (tmp_path / "out.warmup").exists() == (not predicts)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "out"))
    name = f"{family}.embeddings.word_embeddings.weight"
    assert not torch.equal(before[name], after[name])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mpnet", "bert"])
def test_a_sentence_encoder_keeps_its_embeddings_and_stays_one(place, tmp_path, family):
    zoo.build(family).save_pretrained(tmp_path / "base")
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    SentenceSettings(("mean",), normalize=True).write(tmp_path / "base", 48)
    texts = (place / "text.txt").read_text().splitlines()[:12]
    rows = [f"{one}\t{other}\t{number % 5}" for number, (one, other) in enumerate(pairwise(texts))]
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "dev.tsv").write_text("\n".join(["text1\ttext2\tscore", *rows]) + "\n")
    measured = {"similarity_data": str(tmp_path / "pairs"), "similarity_task": "similarity"}
    result = adapt(place, model=tmp_path / "base", head_steps=2, out=tmp_path / "out", log_every=1, **measured)
    assert result.losses.keys() == {"loss", "reconstruction", "pooled"}
    assert SentenceSettings.read(tmp_path / "out") == SentenceSettings.read(tmp_path / "base")
    for folder, name in (("base", "similarity_before"), ("out", "similarity")):
        done = runs.run("evaluate", tmp_path / folder, "--task", "similarity", "--data", tmp_path / "pairs", "--json")
        assert result.metrics[name] == pytest.approx(next(iter(done.json["metrics"].values())), abs=1e-6)
    head = load_file(tmp_path / "out.warmup" / "model.safetensors")
    sizes = [tuple(value.shape) for value in head.values()]
    words = hf.AutoModel.from_pretrained(tmp_path / "base").get_input_embeddings().weight
    assert sizes.count(tuple(words.shape)) == 1  # the head's matrix is the word embedding


def test_similarities_that_suffer_are_told():
    before, after = {"reconstruction": 3.0, "similarity": 0.8}, {"reconstruction": 2.0, "similarity": 0.7}
    assert forgetting(before, before) == []
    assert "fell from 0.8000 to 0.7000" in forgetting(before, after)[0]
    general = [{"general": 3.0}, {"general": 3.5}], [{"general": 3.0}, {"general": 4.5}]
    for (first, last), warns in zip(general, (False, True), strict=True):
        told = forgetting({"reconstruction": 3.0, **first}, {"reconstruction": 2.0, **last})
        assert bool(told) == warns


@pytest.mark.slow
def test_decoders_learn_the_next_token_and_keep_their_features(place, tmp_path):
    result = adapt(place, model=place / "decoder", out=tmp_path / "out", max_steps=20)
    assert type(result.model) is hf.LlamaForCausalLM
    assert result.metrics["reconstruction"] < result.metrics["reconstruction_before"]
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.round-0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, {"reconstruction", "features"}),
        ({"positions": "mean"}, {"reconstruction", "features"}),
        ({"positions": "first", "reduction": "sum"}, {"reconstruction", "features"}),
        ({"positions": "pooled"}, {"reconstruction", "pooled"}),
        ({"match": "predictions"}, {"reconstruction", "soft_labels"}),
        ({"reconstruction": 0.0}, {"reconstruction", "features"}),
        ({"masking": "bert", "mask_share": 0.3, "pack": True}, {"reconstruction", "features"}),
        ({"accumulation": 2, "gradient_checkpointing": True}, {"reconstruction", "features"}),
        ({"rounds": 0}, {"reconstruction"}),
    ],
)
def test_what_can_be_learned(place, changes, parts):
    result = adapt(place, **changes, log_every=1)
    assert result.losses.keys() == {"loss", *parts}
    weight = changes.get("reconstruction", 1.0)
    expected = sum((weight if name == "reconstruction" else 1) * result.losses[name] for name in parts)
    assert result.losses["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_teacher_sees_no_mask(place, tmp_path):
    state = state_of(config_of(place, out=str(tmp_path / "out")))
    seen = {"teacher": set(), "student": set()}
    for name, model in (("teacher", state.teacher_model), ("student", state.model)):
        table = Anatomy.of(model).word_embedding.module
        table.register_forward_pre_hook(lambda _, args, name=name: seen[name].update(args[0].flatten().tolist()))
    state.train(tmp_path / "work")
    mask = state.processor.mask_token_id
    assert mask in seen["student"]
    assert seen["teacher"]
    assert mask not in seen["teacher"]


@pytest.mark.slow
def test_a_cache_changes_nothing_and_spares_the_teacher_the_second_pass(place, tmp_path):
    calls, weights = {}, {}
    # Examples of one length, so that no text has other neighbours to be padded to.
    shared = {"pack": True, "max_steps": None, "epochs": 3.0}
    adapt(place, **shared, rounds=0, keep_head=True, model=place / "headed", out=tmp_path / "round")
    for name, cache in (("cached", str(tmp_path / "cache")), ("not cached", None)):
        changes = {"model": place / "headed", "teacher": str(tmp_path / "round"), "teacher_cache": cache}
        state = state_of(config_of(place, **shared, **changes))
        calls[name] = 0

        def count(*_, name=name):
            calls[name] += 1

        Anatomy.of(state.teacher_model).blocks[0].module.register_forward_hook(count)
        steps = state.train(tmp_path / name).steps
        weights[name] = weights_of(state.model)
    tried = 1  # a batch before the first step, to see which weights are reached
    assert calls["not cached"] == tried + steps
    assert calls["cached"] <= tried + -(-steps // 3)
    for name, value in weights["cached"].items():
        torch.testing.assert_close(value, weights["not cached"][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("match", "norm"), [("weights-l2", "l2"), ("weights-mars", "mars")])
def test_weights_are_kept_near_the_teachers(place, tmp_path, match, norm):
    adapt(place, rounds=0, keep_head=True, model=place / "headed", out=tmp_path / "round")
    distances = {}
    for strength in ("free", "near"):
        # A reconstruction that hardly counts leaves the weights to the other term.
        changes = {"match": match, "reconstruction": 1e-6} if strength == "near" else {}
        state = state_of(
            config_of(place, model=place / "headed", teacher=str(tmp_path / "round"), max_steps=20, lr=1e-3, **changes)
        )
        term = WeightDistance.of(Models(Anatomy.of(state.model), Anatomy.of(state.teacher_model)), norm=norm)
        before = term.compare({}, {}, {"input_ids": [0]}).value.item()
        state.train(tmp_path / strength)
        distances[strength] = term.compare({}, {}, {"input_ids": [0]}).value.item() / before
    assert distances["near"] < 0.8  # nearer than at the start
    assert distances["near"] < 0.5 * distances["free"]


@pytest.mark.slow
def test_killed_in_every_phase_it_ends_with_the_same_bytes(place, tmp_path):
    def command(out):
        return (
            "adapt", "--model", place / "base", "--corpus", place / "text.txt", "--rounds", 1, "--max-steps", 6,
            "--head-steps", 4, "--batch-size", 8, "--max-length", 16, "--save-every", 1, "--threads", 1, "--resume",
            "--group-by-length", "--out", out,
        )  # fmt: skip

    assert forking.run(*command(tmp_path / "whole")).code == 0
    places = [
        tmp_path / "killed.warmup.training" / "checkpoint-2",
        tmp_path / "killed.warmup",
        tmp_path / "killed.round-0.training" / "checkpoint-3",
        tmp_path / "killed.training" / "checkpoint-1",
        tmp_path / "killed.training" / "checkpoint-5",
    ]
    kills = sum(forking.killed_when(place.exists, *command(tmp_path / "killed")) for place in places)
    assert kills >= 4
    assert forking.run(*command(tmp_path / "killed")).code == 0
    for name in ("", ".warmup", ".round-0"):
        whole, killed = (
            artifact.read_manifest(tmp_path / f"{folder}{name}").files["model.safetensors"].sha256
            for folder in ("whole", "killed")
        )
        assert whole == killed, name


@pytest.mark.slow
def test_what_is_forgotten_is_measured(place, tmp_path):
    words = (place / "text.txt").read_text().split()
    general = tmp_path / "general.txt"
    general.write_text("\n".join(" ".join(reversed(words[start : start + 6])) for start in range(0, 240, 6)))
    result = adapt(place, rounds=0, max_steps=40, lr=1e-2, general=str(general))
    assert {"general", "general_before"} <= result.metrics.keys()
    lost = result.metrics["general"] - result.metrics["general_before"]
    gained = result.metrics["reconstruction_before"] - result.metrics["reconstruction"]
    assert any("more is forgotten than gained" in note for note in result.notes) == (lost > max(gained, 0))


@pytest.mark.slow
def test_a_task_can_come_after(place, tmp_path):
    done = runs.run(
        "adapt", "--model", place / "base", "--corpus", place / "data", "--text-column", "text", "--max-steps", 2,
        "--head-steps", 2, "--batch-size", 8, "--max-length", 16, "--then-task", "classification", "--data",
        place / "data", "--finetune-steps", 2, "--out", tmp_path / "out", "--json", "--quiet",
    )  # fmt: skip
    assert done.json["task"]["steps"] == 2
    (note,) = done.json["notes"]
    assert "the corpus holds what task `classification` is measured on (`dev.tsv`" in note
    steps = [step.method for step in artifact.read_manifest(tmp_path / "out-classification").steps]
    assert steps == ["adapt", "finetune"]


@pytest.mark.parametrize(
    ("files", "told"),
    [([""], True), (["train.tsv", "dev.tsv"], True), (["train.tsv"], False), (["../text.txt"], False)],
)
def test_texts_that_a_task_is_measured_on_are_told_of(place, files, told):
    corpora = [str(place / "data" / file) for file in files]
    config = config_of(place, corpus=corpora, then_task="classification", data=str(place / "data"))
    assert bool(measured_in_corpus(config)) == told
    assert measured_in_corpus(config_of(place, corpus=corpora)) == []


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rounds": 2, "teacher": "x"}, ConfigError, "make teachers of their own"),
        ({"rounds": None, "teacher": "nowhere"}, CheckpointError, "nowhere"),
        ({"rounds": 0, "positions": "mean"}, ConfigError, "changes nothing without a round or a `teacher`"),
        (
            {"rounds": 1, "match": "predictions", "teacher_cache": "x"},
            ConfigError,
            "nothing without `match` `features`",
        ),
        ({"rounds": 1, "match": "weights-l2", "positions": "mean"}, ConfigError, "nothing without `match` `features`"),
        ({"rounds": 1, "teacher_cache_limit": 2.0}, ConfigError, "changes nothing without `teacher_cache`"),
        ({"rounds": 1, "positions": "pooled", "reduction": "sum"}, ConfigError, "compared by their cosine"),
        ({"trains": "head"}, ConfigError, "the head would be left behind"),
        ({"trains": "head", "rounds": 1}, ConfigError, "into which nothing is distilled"),
        ({"trains": "head", "head_steps": 2}, ConfigError, "changes nothing without `trains` `all`"),
        ({"new_tokens": 3, "rounds": None, "teacher": "x"}, ConfigError, "`x` does not know pieces that are new"),
        ({"new_tokens": 3}, CheckpointError, "`WordLevel`, whose words have no parts"),
        ({"rounds": 0, "reconstruction": 0.0}, ConfigError, "nothing would be learned"),
        ({"rounds": 0, "similarity_task": "similarity"}, ConfigError, "changes nothing without `similarity_data`"),
        ({"rounds": 1, "similarity_task": "similarity"}, ConfigError, "changes nothing without `similarity_data`"),
        ({"then_task": "classification"}, ConfigError, "go together"),
        ({"finetune_lr": 0.1}, ConfigError, "changes nothing without `then_task`"),
        ({"max_length": 1000}, ConfigError, "the model takes 64 tokens"),
        ({"corpus": ["nowhere.txt"]}, DataError, "nothing at `nowhere.txt`"),
        ({"general": "nowhere.txt"}, DataError, "nothing at `nowhere.txt`"),
        ({"model": "nowhere"}, CheckpointError, "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_work(place, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        adapt(place, **{"rounds": 0, **changes} if "rounds" not in changes else changes, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_steps_of_a_head_that_is_not_warmed_up_are_refused(place, tmp_path):
    with pytest.raises(ConfigError, match=r"`head_steps` is 3, and `.*headed` has the head it needs"):
        adapt(place, model=place / "headed", head_steps=3, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_elastic_model_is_refused_with_the_way_to_a_plain_one(place, tmp_path):
    runs.elastic_decoder(tmp_path / "nested")
    model = str(tmp_path / "nested")
    words = f"take out its largest size first: slimformer extract {re.escape(model)} --allocation XL --out PLAIN"
    with pytest.raises(CheckpointError, match=words):
        adapt(place, model=model, out=tmp_path / "out")
    assert runs.run("extract", model, "--allocation", "XL", "--out", tmp_path / "plain").code == 0
    adapt(place, model=tmp_path / "plain", rounds=0, out=tmp_path / "out")


def test_a_grid_of_rates_is_refused(place, tmp_path):
    changes = {name: value for name, value in settings(place, out=tmp_path / "out").items() if name != "lr"}
    with pytest.raises(ConfigError, match="each rate needs rounds of its own"):
        slimformer.adapt(**changes, lr_grid="1e-4,1e-3")
    assert not list(tmp_path.iterdir())


def test_a_corpus_without_a_second_document_is_refused(place, tmp_path):
    (tmp_path / "one.txt").write_text("the same line\n" * 20)
    with pytest.raises(DataError, match="too few different documents"):
        adapt(place, corpus=[str(tmp_path / "one.txt")], rounds=0, model=place / "headed", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("taken", ["out.warmup", "out.round-0", "out"])
def test_a_place_that_is_taken_is_refused_before_the_first_phase(place, tmp_path, taken):
    shutil.copytree(place / "base", tmp_path / taken)
    with pytest.raises(ArtifactError, match=re.escape(taken)):
        adapt(place, out=tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {taken}


@pytest.mark.slow
def test_a_teacher_can_be_named(place, tmp_path):
    adapt(place, rounds=0, out=tmp_path / "first")
    result = adapt(place, teacher=str(tmp_path / "first"), out=tmp_path / "second", log_every=1)
    assert "features" in result.losses
    assert (tmp_path / "second.warmup").is_dir()


@pytest.mark.slow
def test_a_head_that_is_the_embedding_alone_needs_no_warm_up(tmp_path, place):
    model = hf.LlamaForCausalLM.from_pretrained(place / "decoder")
    model.config.tie_word_embeddings = True
    model.model.config.tie_word_embeddings = True
    model.model.save_pretrained(tmp_path / "bare")
    corpus.tokenizer().save_pretrained(tmp_path / "bare")
    result = adapt(place, model=tmp_path / "bare", rounds=0, out=tmp_path / "out")
    assert type(result.model) is hf.LlamaModel
    assert not (tmp_path / "out.warmup").exists()


@pytest.mark.slow
def test_phases_of_another_corpus_are_not_built_upon(place, tmp_path):
    (tmp_path / "text.txt").write_text((place / "text.txt").read_text())
    changes = {"corpus": [str(tmp_path / "text.txt")], "out": tmp_path / "out"}
    adapt(place, **changes)
    shutil.rmtree(tmp_path / "out")
    with (tmp_path / "text.txt").open("a") as file:
        file.write("the film was good\n" * 5)
    with pytest.raises(TrainingError, match="was made of another corpus or base"):
        adapt(place, **changes, resume=True)
    adapt(place, **changes, overwrite=True)


@pytest.mark.slow
def test_a_phase_does_not_replace_the_base(place, tmp_path):
    shutil.copytree(place / "headed", tmp_path / "out.round-0")
    before = (tmp_path / "out.round-0" / "model.safetensors").read_bytes()
    with pytest.raises(TrainingError, match="which `--model` names"):
        adapt(place, model=tmp_path / "out.round-0", out=tmp_path / "out", overwrite=True)
    assert (tmp_path / "out.round-0" / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_a_warning_reaches_the_person(place, tmp_path):
    words = (place / "text.txt").read_text().split()
    (tmp_path / "general.txt").write_text(
        "\n".join(" ".join(words[start : start + 4][::-1]) for start in range(0, 160, 4))
    )
    done = runs.run(
        "adapt", "--model", place / "headed", "--corpus", place / "text.txt", "--rounds", 0, "--max-steps", 30,
        "--lr", 1, "--batch-size", 8, "--max-length", 16, "--general", tmp_path / "general.txt",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "more is forgotten than gained" in done.err
