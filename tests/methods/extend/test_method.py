"""`slimformer extend` and `adapt --new-tokens`: a larger vocabulary as an artifact that every method starts from."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers as hf

import slimformer
from slimformer import artifact, models
from slimformer.errors import ArtifactError, CheckpointError, ConfigError, DataError, TrainingError
from slimformer.models.sentence import SentenceSettings
from tests import corpus, forking, runs

QUICK = {"max_steps": 3, "batch_size": 8, "max_length": 16, "lr": 1e-3, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A sentence encoder that reads as MiniLM, a text of a domain, and data of a task with words of both."""
    folder = tmp_path_factory.mktemp("extend")
    runs.reader(folder / "base")
    SentenceSettings(("cls",), normalize=True).write(folder / "base", 32)
    corpus.domain_file(folder / "text.txt")
    corpus.data_folder(folder / "data", train=24, dev=8)
    return folder


def extend(place, **changes):
    settings = {"model": place / "base", "corpus": [str(place / "text.txt")], "new_tokens": 5, "quiet": True}
    return slimformer.extend(**{**settings, **changes})


def adapt(place, **changes):
    settings = {"model": place / "base", "corpus": [str(place / "text.txt")], "new_tokens": 5, "head_steps": 2}
    return slimformer.adapt(**{**settings, **QUICK, **changes})


def methods_of(folder) -> list[str]:
    return [step.method for step in artifact.read_manifest(folder).steps]


@pytest.fixture(scope="module")
def extended(place):
    result = extend(place, out=place / "extended")
    assert result.folder == place / "extended"
    return result.folder


def test_a_plain_checkpoint_comes_out_that_needs_fewer_tokens(place, extended):
    before, after = (hf.AutoTokenizer.from_pretrained(folder) for folder in (place / "base", extended))
    assert len(after) == len(before) + 5
    assert len(after.tokenize("subcategorization")) == 1
    metrics = artifact.read_manifest(extended).metrics["corpus"]
    assert metrics["tokens_per_word"] < 0.8 * metrics["tokens_per_word_before"]
    assert metrics["pieces"] - metrics["pieces_before"] == 5
    assert metrics["bytes"] - metrics["bytes_before"] == 5 * 32 * 4
    assert metrics["texts_same"] == 0
    old, new = (hf.AutoModel.from_pretrained(folder).eval() for folder in (place / "base", extended))
    assert new.config.vocab_size == old.config.vocab_size + 5
    with torch.no_grad():
        inputs = [reader("the film was good", return_tensors="pt") for reader in (before, after)]
        assert torch.equal(old(**inputs[0]).last_hidden_state, new(**inputs[1]).last_hidden_state)


def test_its_record_is_whole_and_it_stays_a_sentence_encoder(extended):
    assert artifact.verify(extended).max_difference == 0
    manifest = artifact.read_manifest(extended)
    assert methods_of(extended) == ["extend"]
    assert manifest.steps[0].config["new_tokens"] == 5
    assert manifest.base.name == "base"
    assert SentenceSettings.read(extended) == SentenceSettings(("cls",), normalize=True)


def test_the_same_command_again_reads_its_result(place, tmp_path):
    flags = ["--model", place / "base", "--corpus", place / "text.txt", "--out", tmp_path / "out"]
    first = runs.run("extend", *flags, "--new-tokens", 3, "--json").json
    again = runs.run("extend", *flags, "--new-tokens", 3, "--json", "--resume").json
    assert again["metrics"] == first["metrics"]
    runs.run("extend", *flags, "--new-tokens", 4, "--resume").refused("exists")
    runs.run("extend", *flags).refused("`--new-tokens` must be given", code=2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["finetune", "mask", "quantize", "elastic"])
def test_methods_on_a_task_start_from_it(method, place, extended, tmp_path):
    flags = ["--task", "classification", "--data", place / "data", "--max-steps", 2, "--out", tmp_path / "out"]
    more = ["--blocks", "0-"] if method == "mask" else []
    done = runs.run(method, "--model", extended, *flags, *more, "--quiet", "--json")
    assert done.code == 0, done.err
    expected = ["extend", "finetune", method] if method == "quantize" else ["extend", method]
    assert methods_of(tmp_path / "out") == expected
    loaded = slimformer.load(tmp_path / "out")
    assert loaded.processor.tokenize("subcategorization") == ["subcategorization"]
    answer = runs.run("predict", tmp_path / "out", "the subcategorization was good", "--json").json
    assert answer["label"] in ("yes", "no")


@pytest.mark.slow
def test_methods_on_a_corpus_start_from_it(place, extended, tmp_path):
    student = slimformer.distill(
        teacher=extended, layers=1, corpus=[str(place / "text.txt")], out=tmp_path / "student", **QUICK
    )
    assert student.model.config.vocab_size == 30522 + 5
    assert len(student.processor) == 30522 + 5
    flags = ["--model", extended, "--corpus", place / "text.txt", "--out", tmp_path / "trimmed"]
    assert runs.run("trim", *flags).code == 0
    trimmed = models.load_processor(tmp_path / "trimmed")
    assert trimmed.tokenize("treebanks of hyponyms") == models.load_processor(extended).tokenize(
        "treebanks of hyponyms"
    )
    assert extend(place, model=extended, new_tokens=1, out=tmp_path / "more").metrics["pieces"] == 30522 + 6


@pytest.mark.slow
def test_adapting_begins_with_new_pieces(place, extended, tmp_path):
    result = adapt(place, out=tmp_path / "out", max_steps=20)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.vocabulary", "out.warmup", "out.round-0"}
    assert methods_of(tmp_path / "out") == ["extend", "adapt"]
    assert methods_of(tmp_path / "out.round-0") == ["extend", "adapt", "adapt"]
    first, alone = (artifact.read_manifest(folder) for folder in (tmp_path / "out.vocabulary", extended))
    assert first.model.fingerprint == alone.model.fingerprint
    for name in ("tokens_per_word_before", "tokens_per_word"):
        assert result.metrics[name] == alone.metrics["corpus"][name]
    assert result.metrics["reconstruction"] < result.metrics["reconstruction_before"]
    assert type(result.model) is hf.BertModel
    assert result.model.config.vocab_size == 30522 + 5
    assert len(hf.AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("subcategorization")) == 1
    assert SentenceSettings.read(tmp_path / "out") == SentenceSettings(("cls",), normalize=True)
    assert artifact.verify(tmp_path / "out").max_difference == 0


@pytest.mark.slow
def test_it_is_the_same_as_extending_first(place, extended, tmp_path):
    one = adapt(place, out=tmp_path / "one", rounds=0)
    other = adapt(place, model=extended, new_tokens=None, out=tmp_path / "other", rounds=0)
    assert one.metrics == {**other.metrics, **{name: one.metrics[name] for name in one.metrics if "tokens" in name}}
    weights = [artifact.read_manifest(tmp_path / name).model.fingerprint for name in ("one", "other")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_it_can_be_kept_in_memory(place):
    result = adapt(place)
    assert result.folder is None
    assert len(result.processor) == result.model.config.vocab_size == 30522 + 5


@pytest.mark.slow
def test_killed_in_every_phase_it_ends_with_the_same_bytes(place, tmp_path):
    def command(out):
        return (
            "adapt", "--model", place / "base", "--corpus", place / "text.txt", "--new-tokens", 5, "--max-steps", 3,
            "--head-steps", 3, "--batch-size", 8, "--max-length", 16, "--save-every", 1, "--threads", 1, "--resume",
            "--out", out,
        )  # fmt: skip

    assert forking.run(*command(tmp_path / "whole")).code == 0
    places = [
        tmp_path / "killed.vocabulary",
        tmp_path / "killed.warmup.training" / "checkpoint-2",
        tmp_path / "killed.round-0.training" / "checkpoint-2",
        tmp_path / "killed.training" / "checkpoint-1",
    ]
    kills = sum(forking.killed_when(place.exists, *command(tmp_path / "killed")) for place in places)
    assert kills >= 3
    assert forking.run(*command(tmp_path / "killed")).code == 0
    for name in ("", ".vocabulary", ".warmup", ".round-0"):
        whole, killed = (
            artifact.read_manifest(tmp_path / f"{folder}{name}").files["model.safetensors"].sha256
            for folder in ("whole", "killed")
        )
        assert whole == killed, name


@pytest.mark.slow
def test_pieces_of_another_corpus_are_not_built_upon(place, tmp_path):
    text = tmp_path / "text.txt"
    shutil.copy(place / "text.txt", text)
    extend(place, corpus=[str(text)], out=tmp_path / "out.vocabulary")
    with text.open("a") as file:
        file.write("The parsers of lexicalization.\n" * 5)
    with pytest.raises(TrainingError, match="was made of another corpus or base"):
        adapt(place, corpus=[str(text)], out=tmp_path / "out", resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "out.vocabulary"}


@pytest.mark.slow
def test_decoders_are_extended_and_adapted(stories, tmp_path):
    corpus.domain_file(tmp_path / "text.txt")
    settings = {"model": stories, "corpus": [str(tmp_path / "text.txt")], "new_tokens": 4}
    result = slimformer.adapt(**settings, **{**QUICK, "max_steps": 2}, rounds=0, out=tmp_path / "out")
    assert type(result.model) is hf.LlamaForCausalLM
    assert len(result.processor) == result.model.config.vocab_size
    assert result.metrics["tokens_per_word"] < result.metrics["tokens_per_word_before"]
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "out", "out.vocabulary"}


@pytest.mark.parametrize("run", [extend, adapt])
def test_more_pieces_than_are_of_use_are_refused_with_how_many_there_are(run, place, tmp_path):
    with pytest.raises(DataError, match=r"`new_tokens` is 5000, and \d+ new pieces are of use") as caught:
        run(place, new_tokens=5000, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
    count = int(str(caught.value).partition("give ")[2].split()[0])
    assert extend(place, new_tokens=count).metrics["pieces"] == 30522 + count
    with pytest.raises(DataError, match=f"`new_tokens` is {count + 1}, and {count} new pieces"):
        extend(place, new_tokens=count + 1)


def test_a_corpus_of_known_words_is_refused(place, tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"the film was good and {number}\n" for number in range(40)))
    with pytest.raises(DataError, match="a piece for every word that the corpus repeats"):
        extend(place, corpus=[str(tmp_path / "text.txt")], out=tmp_path / "out")
    (tmp_path / "text.txt").write_text("subcategorization of treebanks\n" * 40)
    with pytest.raises(DataError, match="too few different documents to hold some out"):
        extend(place, corpus=[str(tmp_path / "text.txt")], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("run", [extend, adapt])
def test_models_without_word_pieces_are_refused_before_work(run, place, tmp_path):
    runs.viewer(tmp_path / "vit")
    images = ConfigError if run is adapt else CheckpointError
    with pytest.raises(images, match="sees images"):
        run(place, model=tmp_path / "vit", out=tmp_path / "out", **({"max_length": None} if run is adapt else {}))
    corpus.model_folder(tmp_path / "words")
    with pytest.raises(CheckpointError, match="`WordLevel`, whose words have no parts"):
        run(place, model=tmp_path / "words", out=tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"vit", "words"}


@pytest.mark.slow
@pytest.mark.parametrize("run", [extend, adapt])
def test_masks_elastic_and_quantized_models_are_refused(run, place, tmp_path):
    task = ["--task", "classification", "--data", place / "data", "--max-steps", 1, "--quiet"]
    words = {"mask": "is a mask on a base", "elastic": "--allocation XL --out PLAIN", "quantize": "quantized weights"}
    for name, reason in words.items():
        more = ["--blocks", "0-"] if name == "mask" else []
        assert runs.run(name, "--model", place / "base", *task, *more, "--out", tmp_path / name).code == 0
        with pytest.raises(CheckpointError, match=reason):
            run(place, model=tmp_path / name, out=tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_a_place_that_is_taken_is_refused_before_the_pieces_are_chosen(place, tmp_path):
    shutil.copytree(place / "base", tmp_path / "out.vocabulary")
    with pytest.raises(ArtifactError, match=r"out\.vocabulary"):
        adapt(place, out=tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out.vocabulary"}
