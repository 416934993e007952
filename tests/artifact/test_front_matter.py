"""The front matter of cards, read with the classes of `huggingface_hub`."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
import yaml

from slimformer.artifact.card import write_card
from slimformer.artifact.card.front_matter import licence_of
from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.manifest import Base, Manifest, Step, read_manifest

DONE = Path(__file__).parents[1] / "artifacts"
HUB = Base(name="owner/base", fingerprint="0" * 64, revision="1" * 40, license="apache-2.0")


def card_of(manifest: Manifest) -> huggingface_hub.ModelCard:
    return huggingface_hub.ModelCard(write_card(manifest), ignore_metadata_errors=False)


def on_the_hub(name: str, method: str) -> Manifest:
    """An artifact as if its base had been on the Hub."""
    step = Step(method=method, base=HUB)
    metrics = {"sst2/dev": {"accuracy": 0.5, "accuracy@S": 0.25, "mean accuracy": 0.375}}
    return read_manifest(DONE / name).model_copy(update={"steps": [step], "base": HUB, "metrics": metrics})


@pytest.mark.parametrize("name", sorted(path.name for path in DONE.iterdir() if (path / MANIFEST).is_file()))
def test_the_hub_reads_the_card_of_every_artifact(name: str) -> None:
    manifest = read_manifest(DONE / name)
    data = card_of(manifest).data
    assert "slimformer" in data.tags
    measured = [(each.dataset_name, each.metric_value) for each in data.eval_results or []]
    values = [value for metrics in manifest.metrics.values() for value in metrics.values()]
    assert sorted(value for _, value in measured) == (sorted(values) if manifest.task is not None else [])


def test_results_are_those_that_were_measured() -> None:
    data = card_of(on_the_hub("classifier", "finetune")).data
    results = {each.metric_name: each for each in data.eval_results}
    assert {name: (each.metric_type, each.metric_value) for name, each in results.items()} == {
        "accuracy": ("accuracy", 0.5),
        "accuracy@S": ("accuracy", 0.25),
        "mean accuracy": ("accuracy", 0.375),
    }
    first = results["accuracy"]
    assert (first.task_type, first.dataset_name, first.dataset_split) == ("text-classification", "sst2", "dev")
    assert data.pipeline_tag == "text-classification"


@pytest.mark.parametrize(
    ("name", "method", "relation"),
    [("classifier", "finetune", "finetune"), ("ternary", "quantize", "quantized"), ("mask", "mask", "adapter")],
)
def test_the_base_is_linked_as_what_it_is(name: str, method: str, relation: str) -> None:
    data = card_of(on_the_hub(name, method)).data
    assert (data.base_model, data.base_model_relation, data.license) == ("owner/base", relation, "apache-2.0")


def test_a_student_has_weights_of_its_own() -> None:
    data = card_of(on_the_hub("classifier", "distill")).data
    assert data.base_model == "owner/base"
    assert data.get("base_model_relation") is None


def test_a_base_that_was_a_folder_is_no_name_of_the_hub() -> None:
    front = yaml.safe_load(write_card(read_manifest(DONE / "classifier")).split("---")[1])
    assert "base_model" not in front


@pytest.mark.parametrize(
    ("card", "config", "licence"),
    [
        ("---\nlicense: mit\ntags:\n- x\n---\n# A model\n", "{}", "mit"),
        ("# A model without front matter\n", '{"license": "apache-2.0"}', "apache-2.0"),
        ("---\nlicense: [mit]\n---\n", "{}", None),
        ("---\nlicense: 'a licence; of <b>words</b>'\n---\n", "{}", None),
        ("---\nlicense: &a [*a]\n---\n", "{}", None),
        ("---\nno: end\n", "[]", None),
        ("---\n: : :\n---\n", "not JSON", None),
    ],
)
def test_licences_are_those_of_the_card_or_the_config(
    tmp_path: Path, card: str, config: str, licence: str | None
) -> None:
    (tmp_path / "README.md").write_text(card)
    (tmp_path / "config.json").write_text(config)
    assert licence_of(tmp_path) == licence
