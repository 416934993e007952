"""How long to train by default, and what a run says of it before it begins."""

from __future__ import annotations

import pytest

from slimformer import artifact
from slimformer.errors import ConfigError
from slimformer.methods.distill import DistillConfig
from slimformer.methods.distill.config import PRESETS
from slimformer.methods.distill.learning import describe_training
from slimformer.methods.distill.setup import set_up
from tests.methods.distill.test_distill import distill, place  # noqa: F401 (a fixture)
from tests.runs import headed, run

NUMBERS = ("max_steps", "batch_size", "lr", "warmup")


def training(place, teacher="teacher", **values):  # noqa: F811
    files = {"teacher": str(place / teacher), "corpus": [str(place / "text.txt")], "layers": 1}
    return describe_training(set_up(DistillConfig.make({**files, **values})))


def test_the_default_is_for_a_laptop():
    config = DistillConfig()
    assert {name: getattr(config, name) for name in NUMBERS} == {name: PRESETS["laptop"][name] for name in NUMBERS}
    assert config.given() == {}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_setting_by_name_wins_over_the_preset(preset, tmp_path):
    config = DistillConfig.make({"preset": preset, "lr": 5e-4})
    assert config.lr == 5e-4
    assert config.max_steps == PRESETS[preset]["max_steps"]
    assert config.given() == {"preset": preset, "lr": 5e-4}
    assert DistillConfig.make(config.model_dump()) == config
    file = tmp_path / "run.yaml"
    file.write_text("batch_size: 7\npreset: gpu\n")
    read = DistillConfig.read(file, {"preset": preset})
    assert (read.batch_size, read.max_steps) == (7, PRESETS[preset]["max_steps"])


def test_a_preset_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="`preset` is `phone`: should be 'laptop', 'gpu' or 'paper'"):
        DistillConfig.make({"preset": "phone"})


def test_passes_win_over_the_steps_of_a_preset():
    assert DistillConfig.make({"preset": "paper", "epochs": 2}).passes == 2
    assert DistillConfig.make({"max_steps": 3, "epochs": 2}).passes is None


def test_a_run_says_what_its_numbers_mean(place):  # noqa: F811
    words = sum(len(line.split()) for line in (place / "text.txt").read_text().splitlines())
    said = training(place, preset="paper")
    # The models take 64 tokens.
    assert said.startswith("400,000 steps of 256 texts of 64 tokens (preset `paper`): about 6,553.6 million tokens, or")
    passes = float(said.rsplit("or ", 1)[1].split()[0].replace(",", ""))
    assert passes == pytest.approx(400_000 * 256 * 64 / words, rel=0.05)
    said = training(place, max_steps=10, batch_size=8, max_length=16)
    assert said.startswith("10 steps of 8 texts of 16 tokens: about 1,280 tokens, or ")
    said = training(place, epochs=2, batch_size=8)
    assert said == f"2 times over the corpus in steps of 8 texts of 64 tokens: about {2 * words:,} tokens"


def test_whole_texts_are_not_put_together(place, tmp_path):  # noqa: F811
    import transformers as hf

    teacher = headed(tmp_path / "teacher", hf.BertForSequenceClassification, num_labels=2)
    lines = (place / "text.txt").read_text().splitlines()
    said = training(place, teacher=teacher, objective="soft-labels", max_steps=12, batch_size=8)
    assert " of 8 texts of up to 64 tokens" in said
    assert said.endswith(f"or {12 * 8 / len(lines):,.2g} times over the corpus")


def test_the_numbers_used_are_recorded(place, tmp_path):  # noqa: F811
    result = distill(place, preset="gpu", max_length=None, lr=None, out=tmp_path / "out")
    recorded = artifact.read_manifest(tmp_path / "out").steps[-1].config
    assert (recorded["lr"], recorded["warmup"], recorded["chosen_length"]) == (6e-4, 0.01, 64)
    assert (recorded["max_steps"], recorded["batch_size"]) == (4, 8)
    assert result.notes[-1].startswith("4 steps of 8 texts of 64 tokens (preset `gpu`): about 2,048 tokens")


@pytest.mark.slow
def test_the_report_times_one_text_as_long_as_those_of_the_corpus(place, tmp_path):  # noqa: F811
    lines = (place / "text.txt").read_text().splitlines()
    length = round(sum(len(line.split()) for line in lines) / len(lines)) + 2
    distill(place, out=tmp_path / "out", report=tmp_path / "out.html")
    assert f"Median of one text of {length} tokens." in (tmp_path / "out.html").read_text()


def test_help_tells_of_presets_and_budgets():
    text = run("distill", "--help").out
    for flag in ("--preset", "--max-bytes", "--max-params", "--max-ms", "--trim", "--keep"):
        assert flag in text
