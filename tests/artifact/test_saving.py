"""What is saved is what was in memory, with its history, whole or not at all."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import transformers as hf
import yaml
from markdown_it import MarkdownIt
from torch import nn
from torch.nn.utils import parametrize

from slimformer.artifact import Base, Step, TaskRecord, fingerprint, load, read_manifest, save, verify
from slimformer.artifact.card import write_card
from slimformer.artifact.staging import staging
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.models import resolve
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.forging import edit
from tests.zoo import CONFIGS, FAMILIES, build, build_headed, enliven

if TYPE_CHECKING:
    from pathlib import Path

HEADS = [
    hf.BertModel,
    hf.BertForSequenceClassification,
    hf.BertForTokenClassification,
    hf.BertForQuestionAnswering,
    hf.BertForMultipleChoice,
    hf.BertForMaskedLM,
    hf.BertLMHeadModel,
]


def assert_round_trip(model: hf.PreTrainedModel, folder: Path) -> None:
    manifest = save(folder, model, step=STEP)
    assert verify(folder).max_difference <= 1e-6
    loaded = load(folder)
    assert type(loaded.model) is type(model)
    assert loaded.manifest == manifest
    assert loaded.processor is None
    saved = loaded.model.state_dict()
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    assert fingerprint(model) == fingerprint(loaded.model) == fingerprint(folder) == manifest.model.fingerprint


@pytest.mark.parametrize("head", HEADS)
def test_round_trip_of_every_head(head: type, tmp_path: Path) -> None:
    assert_round_trip(tiny_bert(head, num_labels=2), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip_of_every_family(family: str, tmp_path: Path) -> None:
    assert_round_trip(build_headed(family), tmp_path / "headed")
    assert_round_trip(build(family), tmp_path / "base")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_round_trip_of_other_types(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_bert().to(dtype)
    assert_round_trip(model, tmp_path / "out")
    assert load(tmp_path / "out").model.dtype == dtype
    assert read_manifest(tmp_path / "out").model.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("positions", [3, 4, 13])
def test_round_trip_of_short_positions(positions: int, tmp_path: Path) -> None:
    config = CONFIGS["roberta"]()
    config.max_position_embeddings = positions + 1
    assert_round_trip(enliven(hf.RobertaForMaskedLM(config)), tmp_path / "out")


def test_round_trip_of_a_decoder_classifier_without_padding(tmp_path: Path) -> None:
    config = CONFIGS["llama"]()
    config.pad_token_id = None
    assert_round_trip(enliven(hf.LlamaForSequenceClassification(config)), tmp_path / "out")


def test_the_last_call_of_a_tokenizer_leaves_no_trace(tmp_path: Path) -> None:
    used = tiny_tokenizer()
    save(tmp_path / "fresh", tiny_bert(), processor=tiny_tokenizer(), step=STEP)
    used(["a fine film", "dull"], padding=True, truncation=True, max_length=2)
    used.init_kwargs["local_files_only"] = True
    save(tmp_path / "used", tiny_bert(), processor=used, step=STEP)
    for name in ("tokenizer.json", "tokenizer_config.json", "slimformer.json"):
        assert (tmp_path / "used" / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes(), name
    assert len(used("a fine film a fine film", truncation=True, max_length=2)["input_ids"]) == 2


def test_all_files_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    save(tmp_path / "out", tiny_bert(), step=STEP)
    plain = tmp_path / "plain"
    plain.touch()
    assert {path.stat().st_mode for path in (tmp_path / "out").iterdir()} == {plain.stat().st_mode}


def test_image_processor_goes_along(tmp_path: Path) -> None:
    processor = hf.ViTImageProcessor(size={"height": 16, "width": 16})
    save(tmp_path / "out", build_headed("vit"), processor=processor, step=STEP)
    assert load(tmp_path / "out").processor.size == processor.size
    verify(tmp_path / "out")
    assert "AutoImageProcessor" in (tmp_path / "out" / "README.md").read_text()


PLAIN = """
import sys
sys.modules["slimformer"] = None
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
batch = tokenizer("a fine film", return_tensors="pt")
with torch.no_grad():
    print("logits", *model(input_ids=batch["input_ids"]).logits[0].tolist())
"""


@pytest.mark.slow
def test_loads_without_slimformer(saved: Path) -> None:
    run = subprocess.run([sys.executable, "-c", PLAIN, str(saved)], capture_output=True, text=True, check=True)
    printed = next(line for line in run.stdout.splitlines() if line.startswith("logits")).split()[1:]
    loaded = load(saved)
    ids = loaded.processor("a fine film", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = loaded.model(input_ids=ids).logits[0]
    torch.testing.assert_close(torch.tensor([float(value) for value in printed]), expected)


IMPORTS = """
import sys
import slimformer.artifact
heavy = {"torch", "transformers", "safetensors", "numpy", "huggingface_hub"} & set(sys.modules)
heavy |= {name for name in sys.modules if name.startswith(("slimformer.train", "slimformer.methods"))}
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_import_is_light() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def test_same_model_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    manifest = read_manifest(saved)
    save(
        tmp_path / "other name",
        tiny_bert(),
        processor=tiny_tokenizer(),
        step=STEP,
        metrics=manifest.metrics,
        task=manifest.task,
    )
    for path in saved.iterdir():
        assert path.read_bytes() == (tmp_path / "other name" / path.name).read_bytes(), path.name


def test_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = tiny_bert().train()
    model.bert.embeddings.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    state = torch.random.get_rng_state()
    save(tmp_path / "out", model, step=STEP)
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_folder_has_the_usual_permissions(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_takes_wrappers_off(tmp_path: Path) -> None:
    save(tmp_path / "out", nn.DataParallel(tiny_bert()), step=STEP)
    assert load(tmp_path / "out").manifest.model.architecture == "BertForSequenceClassification"


def test_makes_parents_and_fills_an_empty_folder(tmp_path: Path) -> None:
    save(tmp_path / "a" / "b", tiny_bert(), step=STEP)
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", tiny_bert(), step=STEP)
    verify(tmp_path / "empty")


class TestHistory:
    def test_base_folder_is_named_and_recognised(self, tmp_path: Path) -> None:
        tiny_bert(hf.BertModel, seed=3).save_pretrained(tmp_path / "base")
        save(tmp_path / "out", tiny_bert(), step=STEP, base=tmp_path / "base")
        base = read_manifest(tmp_path / "out").base
        assert base == Base(name="base", fingerprint=fingerprint(tmp_path / "base"))
        assert base.fingerprint == fingerprint(tiny_bert(hf.BertModel, seed=3))

    def test_alias_is_named_as_such_whatever_lies_here(
        self, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        artifact.rename(tmp_path / "minilm")
        monkeypatch.chdir(tmp_path)
        save("out", tiny_bert(), step=STEP, base="minilm")
        base = read_manifest("out").base
        assert base == Base(name="minilm", fingerprint=fingerprint(resolve("minilm")), license="apache-2.0")
        assert len(read_manifest("out").steps) == 1

    def test_steps_of_an_artifact_are_carried_over(self, saved: Path, tmp_path: Path) -> None:
        second = Step(method="distill", config={"layers": 1}, seed=7)
        third = Step(method="quantize", seed=1)
        save(tmp_path / "two", tiny_bert(num_hidden_layers=1), step=second, base=saved)
        save(tmp_path / "three", tiny_bert(num_hidden_layers=1), step=third, base=tmp_path / "two")
        manifest = read_manifest(tmp_path / "three")
        assert [step.method for step in manifest.steps] == ["finetune", "distill", "quantize"]
        assert [step.base and step.base.name for step in manifest.steps] == [None, "sst2", "two"]
        assert manifest.base == manifest.steps[-1].base
        assert manifest.base.fingerprint == fingerprint(tmp_path / "two")
        assert manifest.steps[0] == read_manifest(saved).steps[0]

    def test_manifest_of_the_base_can_be_given(self, saved: Path, tmp_path: Path) -> None:
        manifest = read_manifest(saved)
        save(tmp_path / "out", tiny_bert(), step=STEP, base=Base(name="sst2"), base_manifest=manifest)
        assert read_manifest(tmp_path / "out").base == Base(name="sst2", fingerprint=manifest.model.fingerprint)

    def test_manifest_of_another_base_is_refused(self, saved: Path, tmp_path: Path) -> None:
        base = Base(name="other", fingerprint="0" * 64)
        with pytest.raises(ArtifactError, match="`other` has the fingerprint 000000000000…"):
            save(tmp_path / "out", tiny_bert(), step=STEP, base=base, base_manifest=read_manifest(saved))
        with pytest.raises(ArtifactError, match="without `base`"):
            save(tmp_path / "out", tiny_bert(), step=STEP, base_manifest=read_manifest(saved))

    def test_hub_name_that_is_not_cached_has_no_fingerprint(self, tmp_path: Path) -> None:
        save(tmp_path / "out", tiny_bert(), step=STEP, base="nobody/nothing-here")
        assert read_manifest(tmp_path / "out").base == Base(name="nobody/nothing-here")
        front = (tmp_path / "out" / "README.md").read_text().split("---")[1]
        assert yaml.safe_load(front)["base_model"] == "nobody/nothing-here"

    def test_hub_name_that_is_cached_has_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = tmp_path / "cache" / "models--someone--tiny"
        tiny_bert(hf.BertModel).save_pretrained(cache / "snapshots" / "0123")
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("0123")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache.parent))
        save(tmp_path / "out", tiny_bert(), step=STEP, base="someone/tiny")
        expected = Base(name="someone/tiny", revision="0123", fingerprint=fingerprint(tiny_bert(hf.BertModel)))
        assert read_manifest(tmp_path / "out").base == expected

    def test_missing_base_is_an_error_before_writing(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no folder"):
            save(tmp_path / "out", tiny_bert(), step=STEP, base="./nowhere")
        assert not list(tmp_path.iterdir())

    def test_versions_and_command_are_filled_in(self, tmp_path: Path) -> None:
        save(tmp_path / "out", tiny_bert(), step=STEP, command=["slimformer", "finetune", "my data"])
        step = read_manifest(tmp_path / "out").steps[-1]
        assert step.command == "slimformer finetune 'my data'"
        assert step.versions["torch"] == torch.__version__
        assert {"python", "slimformer", "transformers"} <= step.versions.keys()
        given = STEP.model_copy(update={"versions": {"torch": "1"}, "command": "x"})
        save(tmp_path / "given", tiny_bert(), step=given)
        assert read_manifest(tmp_path / "given").steps == [given]


class TestRefusal:
    def refuse(self, tmp_path: Path, match: str, model: nn.Module | None = None, **settings: object) -> None:
        with pytest.raises(ArtifactError, match=match):
            save(tmp_path / "out", tiny_bert() if model is None else model, **{"step": STEP, **settings})
        assert not list(tmp_path.iterdir())

    def test_no_transformer(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "`Linear` is no model of transformers", nn.Linear(2, 2))

    def test_class_that_nobody_else_has(self, tmp_path: Path) -> None:
        class Mine(hf.BertForSequenceClassification):
            pass

        self.refuse(tmp_path, "`Mine` is no model of transformers", tiny_bert(Mine))

    def test_view_that_is_not_baked(self, tmp_path: Path) -> None:
        model = tiny_bert()
        parametrize.register_parametrization(model.classifier, "weight", nn.Identity())
        self.refuse(tmp_path, "`classifier` .* still has a view on it", model)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_model_that_diverged(self, tmp_path: Path, value: float) -> None:
        model = tiny_bert()
        model.classifier.bias.data[1] = value
        self.refuse(tmp_path, "nan or infinity in 2 of 6 values of `logits`", model)

    def test_model_whose_weights_are_not_all_saved(self, tmp_path: Path) -> None:
        model = tiny_bert()
        model._keys_to_ignore_on_save = {"classifier.weight"}
        self.refuse(tmp_path, "`classifier.weight` is missing", model)

    def test_model_that_computes_by_more_than_its_weights(self, tmp_path: Path) -> None:
        model = tiny_bert()
        model.classifier.register_forward_hook(lambda module, inputs, output: output + 1)
        self.refuse(tmp_path, "is not the one in memory: output `logits` differs", model)

    def test_processor_that_is_none(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "`str` cannot be saved: AttributeError", processor="bert-base-uncased")

    def test_processor_that_writes_other_than_text(self, tmp_path: Path) -> None:
        class Binary:
            def save_pretrained(self, folder: Path) -> None:
                (folder / "spiece.model").write_bytes(b"\0")

        self.refuse(tmp_path, r"`Binary` writes `spiece\.model`, which is neither JSON nor text", processor=Binary())

    def test_generation_config_that_contradicts_itself(self, tmp_path: Path) -> None:
        model = build_headed("llama")
        model.generation_config.do_sample = False
        model.generation_config.temperature = 0.5
        self.refuse(tmp_path, "`LlamaForCausalLM` cannot be saved: ValueError", model)

    def test_metric_that_is_no_number(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, r"`metrics\.dev\.loss` cannot be saved.*finite", metrics={"dev": {"loss": float("nan")}})

    def test_unknown_key_of_the_task(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, r"`task\.colour`", task={"name": "x", "kind": "y", "colour": 1})

    def test_config_with_nan(self, tmp_path: Path) -> None:
        step = Step.model_construct(**{**STEP.__dict__, "config": {"rate": float("nan")}})
        self.refuse(tmp_path, "cannot", step=step)

    def test_probe_that_does_not_run(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "does not run through", probe={"input_ids": torch.tensor([[41]])})
        self.refuse(tmp_path, "smaller batch", probe={"input_ids": torch.zeros(2, 70000, dtype=torch.int64)})
        self.refuse(tmp_path, "cannot be kept", probe={"input_ids": torch.zeros(2, 2, dtype=torch.int8)})


def test_own_probe_is_kept(tmp_path: Path) -> None:
    probe = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.tensor([[True, True, False]])}
    save(tmp_path / "out", tiny_bert(), step=STEP, probe=probe)
    inputs = json.loads((tmp_path / "out" / "probe.json").read_bytes())["inputs"]
    assert inputs["input_ids"] == {"dtype": "int64", "shape": [1, 3], "values": [5, 6, 7]}
    verify(tmp_path / "out")


def test_reference_to_code_is_not_carried_on(tmp_path: Path) -> None:
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    model.config.auto_map = {"AutoModel": "someone/else--modeling.Model"}
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    edit(tmp_path / "tokenizer" / "tokenizer_config.json", auto_map={"AutoTokenizer": ["a.B", None]})
    tokenizer = hf.PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")
    save(tmp_path / "out", model, processor=tokenizer, step=STEP)
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in (tmp_path / "out" / name).read_text()
    load(tmp_path / "out")


def replace_slowly(artifact: Path) -> None:
    with staging(artifact, needed=0, overwrite=True) as stage:
        (stage / "slimformer.json").write_text("{}")
        (artifact / "notes.txt").write_text("mine")


class TestOverwrite:
    def test_refuses_unless_asked(self, artifact: Path) -> None:
        with pytest.raises(ArtifactError, match="overwrite=True"):
            save(artifact, tiny_bert(seed=1), step=STEP)
        verify(artifact)

    def test_replaces_everything(self, artifact: Path) -> None:
        manifest = save(artifact, tiny_bert(seed=1), step=STEP, overwrite=True)
        assert load(artifact).manifest == manifest
        assert not (artifact / "tokenizer.json").exists()
        assert [path.name for path in artifact.parent.iterdir()] == [artifact.name]

    def test_replaces_one_that_has_lost_a_file(self, artifact: Path) -> None:
        (artifact / "model.safetensors").unlink()
        save(artifact, tiny_bert(), step=STEP, overwrite=True)
        verify(artifact)

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("notes.txt", "`notes.txt` is none of its files"),
            ("deep/er/notes.txt", "`deep/er/notes.txt` is none of its files"),
            ("thesis.pdf", "holds `thesis.pdf`, which does not belong there"),
            ("README.md", "`README.md` was changed"),
            ("slimformer.json", "slimformer.json` is not valid JSON"),
        ],
    )
    def test_never_replaces_what_the_user_has_put_there(self, artifact: Path, name: str, reason: str) -> None:
        (artifact / name).parent.mkdir(parents=True, exist_ok=True)
        (artifact / name).write_text("mine")
        with pytest.raises(ArtifactError, match=r"is not replaced, as not all of it .*; move it away") as refused:
            save(artifact, tiny_bert(), step=STEP, overwrite=True)
        assert reason in str(refused.value)
        assert (artifact / name).read_text() == "mine"

    def test_what_is_put_there_while_saving_stays(self, artifact: Path) -> None:
        with pytest.raises(ArtifactError, match=r"`notes\.txt` is none of its files"):
            replace_slowly(artifact)
        assert (artifact / "notes.txt").read_text() == "mine"
        assert [path.name for path in artifact.parent.iterdir()] == [artifact.name]

    def test_writes_where_nothing_is(self, tmp_path: Path) -> None:
        save(tmp_path / "out", tiny_bert(), step=STEP, overwrite=True)
        verify(tmp_path / "out")

    def test_never_replaces_what_is_no_artifact(self, tmp_path: Path) -> None:
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "draft.txt").write_text("years of work")
        with pytest.raises(ArtifactError, match="is no artifact"):
            save(tmp_path / "thesis", tiny_bert(), step=STEP, overwrite=True)
        with pytest.raises(ArtifactError, match="exists and is no artifact"):
            save(tmp_path / "thesis" / "draft.txt", tiny_bert(), step=STEP, overwrite=True)
        assert (tmp_path / "thesis" / "draft.txt").read_text() == "years of work"

    def test_failure_leaves_the_former_one(self, artifact: Path) -> None:
        model = tiny_bert(seed=1)
        model.classifier.register_forward_hook(lambda module, inputs, output: output + 1)
        with pytest.raises(ArtifactError, match="is not the one in memory"):
            save(artifact, model, step=STEP, overwrite=True)
        verify(artifact)
        assert [path.name for path in artifact.parent.iterdir()] == [artifact.name]

    def test_can_follow_a_link(self, artifact: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(artifact)
        save(tmp_path / "link", tiny_bert(seed=1), step=STEP, overwrite=True)
        assert (tmp_path / "link").is_symlink()
        assert fingerprint(artifact) == fingerprint(tiny_bert(seed=1))

    def test_base_may_be_replaced_by_its_result(self, artifact: Path) -> None:
        save(artifact, tiny_bert(seed=1), step=Step(method="distill"), base=artifact, overwrite=True)
        assert [step.method for step in read_manifest(artifact).steps] == ["finetune", "distill"]


class TestCard:
    def test_front_matter(self, saved: Path) -> None:
        front = yaml.safe_load((saved / "README.md").read_text().split("---")[1])
        (results,) = front.pop("model-index")
        assert results["results"][0]["dataset"] == {"type": "sst2", "name": "sst2", "split": "dev"}
        assert front == {
            "library_name": "transformers",
            "pipeline_tag": "text-classification",
            "tags": ["slimformer", "finetune"],
        }

    def test_says_what_matters(self, saved: Path) -> None:
        card = (saved / "README.md").read_text()
        for text in ("accuracy | 0.8900", "bad, good, neither", "BertForSequenceClassification.from_pretrained"):
            assert text in card
        assert f"{sum(p.numel() for p in tiny_bert().parameters()):,}" in card

    def test_can_be_made_again_from_the_manifest(self, saved: Path) -> None:
        assert write_card(read_manifest(saved)) == (saved / "README.md").read_text()

    def test_hostile_names_stay_in_their_place(self, tmp_path: Path) -> None:
        name = 'x"\n---\n| a <b> `c`: [d'
        save(tmp_path / "out", tiny_bert(), step=Step(method=name, config={name: name}), metrics={name: {name: 1}})
        card = (tmp_path / "out" / "README.md").read_text()
        assert yaml.safe_load(card.split("\n---\n")[0].removeprefix("---"))["tags"] == ["slimformer", name]
        rows = [line for line in card.splitlines() if line.startswith("| 1 |")]
        assert len(rows) == 1
        assert len(rows[0].replace("\\|", "").split("|")) == 7
        verify(tmp_path / "out")

    def test_links_and_html_in_names_are_dead(self, tmp_path: Path) -> None:
        labels = ["[click](https://evil.example)", "![seen](https://evil.example/pixel.png)", "https://evil.example/a"]
        labels += ["www.evil.example", "<img src=x onerror=alert(1)>", "<https://evil.example>", "me@evil.example"]
        labels += ["[a]: https://evil.example", "\x1b]8;;https://evil.example\x07here", "a\\|b", "``", "_a_ **b**"]
        name = labels[0]
        save(
            tmp_path / "out",
            tiny_bert(num_labels=len(labels)),
            step=Step(method=name, config={each: each for each in labels}, base=Base(name=name)),
            metrics={each: {each: 1} for each in labels},
            task=TaskRecord(name=name, kind=name, labels=labels),
        )
        card = (tmp_path / "out" / "README.md").read_text()
        tokens = MarkdownIt("commonmark").enable("table").parse(card.split("\n---\n", 1)[1])
        inner = [token for block in tokens for token in [block, *(block.children or [])]]
        alive = {"link_open", "image", "html_inline", "html_block", "em_open"}
        assert not {token.type for token in inner} & alive
        # What renders a card may make links of bare addresses, but never inside code.
        assert not [token.content for token in inner if token.type == "text" and "evil" in token.content]
        assert sum("evil" in token.content for token in inner if token.type == "code_inline") > len(labels)
        assert "\x1b" not in card
        assert {line.count("|") for line in card.splitlines() if line.startswith("| 1 |")} == {6}
