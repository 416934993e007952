"""`slimformer compare`: a table, one JSON object, and a page."""

from __future__ import annotations

import pytest

from tests import runs


@pytest.fixture(scope="module")
def other(shelf, base, data):
    """A second model for the same labels."""
    out = shelf / "compared"
    assert runs.finetune(base, "classification", data, out, "--seed", 1, "--quiet").code == 0
    return out


def test_a_table_and_a_verdict(artifact, other, data):
    done = runs.run("compare", artifact, other, "--data", data, "--timed", 3, "--max-bytes", "1GB", "--max-ms", 1e5)
    assert done.code == 0, done.err
    for word in (artifact.name, other.name, "p50 ms", "fits", "yes", "best within the budgets"):
        assert word in done.out


def test_one_json_object(artifact, other, data):
    told = runs.run("compare", artifact, other, "--data", data, "--timed", 3, "--json").json
    assert [model["model"] for model in told["models"]] == [str(artifact), str(other)]
    assert told["budgets"] == {"bytes": None, "ms": None}
    assert set(told["models"][0]["classes"]["labels"]) == {"yes", "no"}


def test_a_page_that_needs_nothing_but_itself(artifact, other, data, tmp_path):
    page = tmp_path / "compared.html"
    done = runs.run("compare", artifact, other, "--data", data, "--timed", 3, "--report", page)
    assert done.code == 0, done.err
    html = page.read_text()
    for word in ("What quality costs", "Label by label", "takes for what", "<svg"):
        assert word in html
    assert "src=" not in html


def test_a_file_of_somebody_else_is_not_replaced(artifact, data, tmp_path):
    mine = tmp_path / "notes.html"
    mine.write_text("mine")
    runs.run("compare", artifact, "--data", data, "--report", mine).refused("notes.html", "is not replaced")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--max-bytes", "some"], ["--max-bytes", "some"]),
        (["--max-ms", "-1"], ["--max-ms", "-1"]),
        (["--timed", "0"], ["timed", "0"]),
        (["--threads", "0"], ["--threads", "0"]),
    ],
)
def test_bad_numbers_are_refused(artifact, data, more, words):
    done = runs.run("compare", artifact, "--data", data, *more)
    assert done.code == 2, done.err
    assert all(word in done.err for word in words)


def test_no_model_is_refused(data):
    runs.run("compare", "--data", data).refused("no model given", code=2)


def test_an_artifact_that_is_not_there(data, tmp_path):
    runs.run("compare", tmp_path / "none", "--data", data).refused("none")


def test_which_budget_leaves_models_out_is_said(artifact, other, data):
    done = runs.run("compare", artifact, other, "--data", data, "--timed", 3, "--max-bytes", "1kB", "--max-ms", 1e5)
    said = "no model is within the budgets: 2 of 2 are not known to be within 0.00 MB; 0 of 2 take more than 100000 ms"
    assert said in done.out.replace("\n", " ")
