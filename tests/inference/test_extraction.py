"""Extraction: what the folder holds computes what the slice computes, within the budget, in a process of its own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import slimformer
from slimformer import Anatomy, extract
from slimformer.anatomy import Census
from slimformer.errors import ArtifactError, CheckpointError, SizeError, UsageError
from slimformer.inference.door import look_up
from slimformer.inference.extraction import publish
from slimformer.sizes import Allocation, Costs, Elastic
from slimformer.sizes.table import PUBLISHED, SIZES, read_published
from tests import corpus, runs, zoo
from tests.artifact.storage.test_packed_alone import ALONE
from tests.elastic import elastic_folder

if TYPE_CHECKING:
    from pathlib import Path


def answer(model, family):
    inputs = zoo.inputs_for(family)
    if family == "mpnet":  # several choices a question
        inputs = {name: value[:, None] for name, value in inputs.items()}
    with torch.no_grad():
        outputs = model(**inputs)
    return outputs["logits"] if "logits" in outputs else outputs["start_logits"]


def headed(family):
    model = zoo.build_headed(family)
    if family in zoo.CAUSAL:
        model.config.pad_token_id = 0
    return model


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return elastic_folder(tmp_path_factory.mktemp("bert") / "elastic", headed("bert"), skip=True)


#: Loads each folder and answers as the test does.
RELOAD = """
import sys
import torch
import slimformer
from tests.inference.test_extraction import answer

torch.set_num_threads(1)
answers = {}
for line in sys.stdin.read().split():
    family, folder = line.split("=")
    answers[folder] = answer(slimformer.load(folder).model, family)
torch.save(answers, sys.argv[1])
"""


def extracted_everywhere(families, folder):
    """Extract neurons, heads and blocks from every family: folder → (family, the answer of the slice)."""
    expected = {}
    for family in families:
        model = headed(family)
        pinned = Anatomy.of(model).family.heads_pinned_by is not None
        source = elastic_folder(folder / family, model, "neurons" if pinned else "all", skip=True)
        loaded = slimformer.load(source, check=False).model
        narrow = ("S,M,XL", "M,0,XL") if pinned else ("M,L,XL", "L,0,XL", "S,S,S", "S,L,XL")
        for size in narrow:
            out = folder / f"{family}-{size}"
            extract(source, out, allocation=size, check=False)
            with Elastic.of(loaded).at(size):
                expected[str(out)] = (family, answer(loaded, family))
    return expected


@pytest.mark.slow
def test_reloaded_in_a_new_process_it_answers_as_the_slice(tmp_path):
    expected = extracted_everywhere(zoo.FAMILIES, tmp_path)
    folders = "\n".join(f"{family}={folder}" for folder, (family, _) in expected.items())
    command = [sys.executable, "-c", RELOAD, str(tmp_path / "answers.pt")]
    subprocess.run(command, input=folders, text=True, check=True, capture_output=True)
    answers = torch.load(tmp_path / "answers.pt", weights_only=True)
    assert len(expected) == len(answers) >= 2 * len(zoo.FAMILIES)
    for folder, (_, sliced) in expected.items():
        torch.testing.assert_close(answers[folder], sliced, rtol=0, atol=1e-6 * float(sliced.abs().max()), msg=folder)


@pytest.mark.parametrize(
    ("size", "storage"), [("S", "plain"), ("0.5", "plain"), ("M,0,M", "plain"), ("S,M,S", "per-block")]
)
def test_one_width_is_a_plain_checkpoint(bert, size, storage, tmp_path):
    result = extract(bert, tmp_path / "out", allocation=size)
    assert result.manifest.model.storage == storage
    assert [step.method for step in result.manifest.steps] == ["elastic", "extract"]
    assert slimformer.verify(tmp_path / "out")
    ours = slimformer.load(tmp_path / "out").model
    if storage == "plain":
        alone = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
        assert torch.equal(answer(alone, "bert"), answer(ours, "bert"))
        look_up(tmp_path / "out").require(("plain",))
    else:
        with pytest.raises(CheckpointError, match="has blocks of different widths"):
            look_up(tmp_path / "out").require(("plain",))


def test_heads_that_a_config_cannot_tell_are_kept_all_the_same(tmp_path):
    """BERT's config has no width of a head: half of the heads in every block need widths of their own."""
    source = elastic_folder(tmp_path / "elastic", headed("bert"), "heads")
    assert extract(source, tmp_path / "out", allocation="S").manifest.model.storage == "per-block"
    blocks = Anatomy.of(slimformer.load(tmp_path / "out").model).blocks
    assert [(block.heads, block.head_width, block.ffn_width) for block in blocks] == [(2, 12, 16)] * 3
    source = elastic_folder(tmp_path / "llama", headed("llama"), "heads")
    assert extract(source, tmp_path / "small", allocation="S").manifest.model.storage == "plain"


@pytest.mark.slow
def test_transformers_alone_refuses_blocks_of_different_widths(bert, tmp_path):
    extract(bert, tmp_path / "out", allocation="S,0,XL")
    known = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")  # slimformer is imported here
    known.save_pretrained(tmp_path / "again")
    for folder in (tmp_path / "out", tmp_path / "again"):
        done = subprocess.run([sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, check=True)
        assert [line.split()[1] for line in done.stdout.splitlines()] == ["refused"] * 5, done.stdout
        assert "transformers_weights" not in json.loads((folder / "config.json").read_text())
    again = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(answer(again, "bert"), answer(known.eval(), "bert"))
    assert not getattr(known, "is_quantized", False)


@pytest.mark.parametrize("what", ["parameters", "bytes", "flops"])
def test_a_file_keeps_to_the_budget_and_no_block_could_grow(bert, what, tmp_path):
    flag = {"parameters": "max_params", "bytes": "max_bytes", "flops": "max_flops"}[what]
    model = slimformer.load(bert).model
    elastic, costs = Elastic.of(model), Costs.of(model, what, length=64)
    least, most = costs.total(elastic.allocation("0,S,0")), costs.total(elastic.largest)
    for number in range(6):
        limit = random.Random(f"{what} {number}").randint(least, most)
        result = extract(bert, tmp_path / "out", **{flag: limit}, overwrite=True)
        tensors = load_file(next((tmp_path / "out").glob("*.safetensors"))).values()
        stored = {
            "parameters": sum(tensor.numel() for tensor in tensors),
            "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "flops": result.flops,
        }
        assert result.manifest.model.parameters == stored["parameters"]
        assert result.bytes == stored["bytes"]
        allocation = elastic.allocation(result.allocation)
        assert stored[what] == costs.total(allocation) <= limit
        for larger in grown(elastic, allocation):
            assert costs.total(larger) > limit


def test_a_budget_may_be_a_text(bert, tmp_path):
    small = extract(bert, tmp_path / "out", max_bytes="100kB")
    assert extract(bert, tmp_path / "same", max_bytes=100_000).allocation == small.allocation
    assert small.bytes <= 100_000


def grown(elastic, allocation: Allocation):
    """Every allocation in which one block is one size larger."""
    steps = [None, *elastic.sizes]
    for index, size in enumerate(allocation):
        if steps.index(size) + 1 < len(steps):
            yield allocation.replaced(index, steps[steps.index(size) + 1])


def test_metrics_of_a_size_go_with_it(tmp_path):
    metrics = {"data/dev": {"accuracy": 0.9, "accuracy@S": 0.7, "accuracy@XL": 0.9, "mean accuracy": 0.8}}
    source = elastic_folder(tmp_path / "elastic", headed("bert"), metrics=metrics)
    assert extract(source, tmp_path / "small", allocation="S").manifest.metrics == {"data/dev": {"accuracy": 0.7}}
    assert extract(source, tmp_path / "mixed", allocation="S,M,S").manifest.metrics == {}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, UsageError, "nothing says which size; give one of `--allocation`, `--max-params`"),
        ({"allocation": "S", "max_bytes": 9}, UsageError, "`--allocation` and `--max-bytes` were given"),
        ({"max_params": 0}, UsageError, "`--max-params` is `0`; give a size of 1 to .*, such as `2.5M`"),
        ({"max_bytes": "ten MB"}, UsageError, "`--max-bytes` is `ten MB`; give a size such as `10MB`, `9.5MiB`"),
        ({"max_latency": 0}, UsageError, "`--max-latency` is `0`; give a number above 0"),
        ({"max_params": 10}, SizeError, "no size keeps to 10 parameters"),
        ({"allocation": "S,S"}, SizeError, "names 2 blocks, and the model has 3"),
        ({"allocation": "0,0,0"}, SizeError, "skips every block"),
        ({"allocation": "S", "order": "random"}, UsageError, "`--order` is `random`; known: increasing"),
    ],
)
def test_what_cannot_be_extracted_is_refused(bert, settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        extract(bert, tmp_path / "out", **settings)
    assert list(tmp_path.iterdir()) == []


def test_places_and_sources_that_will_not_do_are_refused(bert, tmp_path):
    extract(bert, tmp_path / "out", allocation="S")
    with pytest.raises(ArtifactError, match="which would be lost"):
        extract(bert, bert, allocation="S", overwrite=True)
    with pytest.raises(ArtifactError, match="exists"):
        extract(bert, tmp_path / "out", allocation="M")
    with pytest.raises(SizeError, match="has one size only, there is none to choose"):
        extract(tmp_path / "out", tmp_path / "other", allocation="S")


@pytest.mark.parametrize("key", ["neurons", "heads", "blocks", "version", "other"])
def test_widths_that_cannot_be_are_refused(bert, key, tmp_path):
    """Also where the sums are made anew."""
    from slimformer.artifact.loading import load_model
    from tests.artifact.forging import edit, resum

    extract(bert, tmp_path / "out", allocation="S,M,XL")
    path = tmp_path / "out" / "config.json"
    described = json.loads(path.read_text())["quantization_config"]
    if key == "blocks":
        described["blocks"].pop()
    elif key in ("version", "other"):
        described[key] = 2
    else:
        described["blocks"][0][key] = 10**9
    edit(path, quantization_config=described)
    resum(tmp_path / "out", fingerprint="0" * 64)
    with pytest.raises(ArtifactError, match=r"config.json gives|version|`other`"):
        load_model(tmp_path / "out")


def test_a_forged_table_of_sizes_is_found(bert, tmp_path):
    """Even where every sum is made anew, the answers at each size are not those that were recorded."""
    import shutil

    from slimformer.artifact.checks import sum_file
    from tests.artifact.forging import edit, resum

    def shares(table):
        table["sizes"][0]["neurons"] = 0.3

    def names(table):
        table["sizes"][0]["name"] = "T"

    def fewer(table):
        del table["sizes"][1]

    def depth(table):
        table["sizes"][0]["depth"] = 0.5

    def skipping(table):
        del table["skip"]

    for change in (shares, names, fewer, depth, skipping):
        folder = shutil.copytree(bert, tmp_path / change.__name__)
        table = json.loads((folder / SIZES).read_text())
        change(table)
        (folder / SIZES).write_text(json.dumps(table))
        resum(folder)
        with pytest.raises(ArtifactError, match=r"`sizes.json` of artifact .* is missing or not the one its"):
            slimformer.verify(folder)
        if change is skipping:
            continue  # what each size computes is what it was
        edit(folder / "probe.json", bound={SIZES: sum_file(folder / SIZES).sha256})
        resum(folder)
        with pytest.raises(ArtifactError, match=r"at size `S` output|the sizes are"):
            slimformer.verify(folder)


def test_a_table_without_recorded_answers_is_taken_as_it_is(bert, tmp_path):
    """Folders of earlier versions: their probe was asked at the largest size only."""
    import shutil

    from tests.artifact.forging import resum

    folder = shutil.copytree(bert, tmp_path / "old")
    probe = json.loads((folder / "probe.json").read_text())
    assert set(probe["sizes"]) == {"S", "M", "XL"}
    del probe["sizes"], probe["bound"]
    (folder / "probe.json").write_text(json.dumps(probe))
    resum(folder)
    assert slimformer.verify(folder)
    assert Elastic.of(slimformer.load(folder).model).names == ("S", "M", "XL")


@pytest.mark.slow
def test_every_command_takes_what_was_extracted(tmp_path):
    corpus.model_folder(tmp_path / "base", dropout=0.0)
    corpus.data_folder(tmp_path / "data")
    flags = ["--task", "classification", "--data", tmp_path / "data", "--quiet"]
    quick = ["--max-steps", 2, "--batch-size", 8, "--calibration", 8]
    run = runs.run
    elastic = run("elastic", "--model", tmp_path / "base", *flags, "--out", tmp_path / "e", *quick)
    assert elastic.code == 0, elastic.err
    for name, sizes in (("mixed", "S,XL"), ("plain", "M")):
        out = tmp_path / name
        made = run("extract", tmp_path / "e", "--allocation", sizes, "--out", out, "--json").json
        assert made["allocation"] == sizes
        whole = run("evaluate", tmp_path / "e", "--data", tmp_path / "data", "--size", sizes, "--json").json
        assert run("evaluate", out, "--data", tmp_path / "data", "--json").json["metrics"] == whole["metrics"]
        asked = run("predict", tmp_path / "e", "the film was good", "--size", sizes)
        assert run("predict", out, "the film was good").out == asked.out
        benched = run("bench", out, "--length", 8, "--seconds", 0, "--json").json["models"][0]
        inspected = run("inspect", out, "--json").json
        assert run("inspect", tmp_path / "e", "--size", sizes, "--json").json["parts"] == inspected["parts"]
        assert benched["parameters"] == inspected["parameters"] == made["parameters"]
        assert run("verify", out).code == 0
        assert run("export", out, "--out", tmp_path / f"{name}.onnx").code == 0
    tuned = ["finetune", *flags, "--max-steps", 1, "--batch-size", 8]
    assert run(*tuned, "--model", tmp_path / "plain", "--out", tmp_path / "tuned").code == 0
    run(*tuned, "--model", tmp_path / "mixed", "--out", tmp_path / "no").refused("has blocks of different widths")
    budget = ["extract", tmp_path / "e", "--max-params", made["parameters"]]
    chosen = run(*budget, "--sensitivity", "--data", tmp_path / "data", "--out", tmp_path / "sensitive", "--json").json
    assert chosen["parameters"] <= made["parameters"]
    run(*budget, "--data", tmp_path / "data", "--out", tmp_path / "no").refused("`--data` is for `--sens", code=2)
    run(*budget, "--sensitivity", "--out", tmp_path / "no").refused("data", code=2)
    timed = run("extract", tmp_path / "e", "--max-latency", 1e6, "--out", tmp_path / "timed", "--json").json
    assert timed["allocation"] == "XL"
    named = ["--allocation", "S,XL", "--publish", "phone", "--data", tmp_path / "data", "--json"]
    published = run("extract", tmp_path / "e", *named).json["published"]
    measured = run("evaluate", tmp_path / "e", "--data", tmp_path / "data", "--size", "phone", "--json").json
    assert published["quality"] == measured["metrics"]
    run("extract", tmp_path / "e", "--out", tmp_path / "no").refused("nothing says which size", code=2)
    assert not (tmp_path / "no").exists()


def test_inspect_counts_the_slice(bert, tmp_path):
    counted = {size: runs.run("inspect", bert, "--size", size, "--json").json for size in ("S", "S,0,XL")}
    model = slimformer.load(bert).model
    for size, summary in counted.items():
        assert summary["parameters"] == Costs.of(model).total(Elastic.of(model).allocation(size))
    assert (counted["S,0,XL"]["blocks"], counted["S,0,XL"]["ffn_widths"]) == (2, [16, 64])
    with Elastic.of(model).at("S"):
        assert Census.of(Anatomy.of(model)).parameters == counted["S"]["parameters"]
    extract(bert, tmp_path / "out", allocation="S")
    runs.run("inspect", tmp_path / "out", "--size", "S").refused("has one size only")


def test_a_published_size_is_known_by_its_name(bert, tmp_path):
    import shutil

    folder = shutil.copytree(bert, tmp_path / "elastic")
    weights = (folder / "model.safetensors").read_bytes()
    first = publish(folder, "phone", allocation="S,0,XL")
    most = Costs.of(slimformer.load(folder).model).total(Elastic.of(slimformer.load(folder).model).allocation("M"))
    second = publish(folder, "tablet", max_params=most)
    assert (first.allocation, second.allocation) == ("S,0,XL", "M,M,M")
    assert second.cost["parameters"] == most
    assert slimformer.verify(folder)
    assert (folder / "model.safetensors").read_bytes() == weights
    elastic = Elastic.of(slimformer.load(folder).model)
    assert str(elastic.allocation("phone")) == "S,0,XL"
    assert extract(folder, tmp_path / "out", allocation="phone").allocation == "S,0,XL"
    assert extract(folder, tmp_path / "out", allocation="tablet", overwrite=True).allocation == "M"
    publish(folder, "phone", allocation="S")
    assert [record.name for record in read_published(folder)] == ["tablet", "phone"]
    done = runs.run("extract", folder, "--allocation", "S,S,M", "--publish", "watch", "--json")
    assert done.json["published"]["allocation"] == "S,S,M"
    assert runs.run("inspect", folder, "--size", "watch", "--json").json["ffn_widths"] == [16, 16, 32]
    runs.run("inspect", folder, "--size", "desk").refused("there is no size `desk`; the model has S", "tablet, phone")
    for name in ("xl", "0.5", "a,b"):
        runs.run("extract", folder, "--allocation", "S", "--publish", name).refused(f"`{name}` is")
    runs.run("extract", folder, "--allocation", "S").refused("nothing says where the size goes", code=2)


def test_forged_published_sizes_are_found(bert, tmp_path):
    import shutil

    from tests.artifact.forging import resum

    folder = shutil.copytree(bert, tmp_path / "elastic")
    publish(folder, "phone", allocation="S")
    text = (folder / PUBLISHED).read_text()
    for forged in (text.replace("S,S,S", "XL,XL,XL"), text.replace("S,S,S", "S,S"), text.replace("phone", "XL"), "{}"):
        (folder / PUBLISHED).write_text(forged)
        resum(folder)
        with pytest.raises(ArtifactError, match=r"published.json"):
            slimformer.verify(folder)
