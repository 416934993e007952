"""The code in the guides runs as it stands there, block after block."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from slimformer import models
from slimformer.anatomy import family
from tests import corpus, zoo
from tests.conftest import ROOT


def python_blocks(page: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def run(page: str, **names):
    code = compile(python_blocks(page), page, "exec")
    exec(code, names)
    return names


@pytest.fixture
def minilm():
    folder = models.resolve("minilm")
    batch = AutoTokenizer.from_pretrained(folder)(["one", "two and three"], padding=True, return_tensors="pt")
    return {"model": AutoModel.from_pretrained(folder).eval(), "batch": batch}


def test_adding_a_family_as_the_guide_says(monkeypatch):
    monkeypatch.setattr(family, "_families", dict(family._families))
    names = run("guides/add-a-family.md")
    assert "opt" in family.known()
    assert len(names["own"]) == 2


def test_anatomy_guide(capsys):
    run("guides/anatomy.md")
    assert capsys.readouterr().out.splitlines()[0] == "Block(0: 12 heads of 32, 12 key-value heads, ffn 1536)"


def test_taps_guide():
    names = run("guides/taps.md")
    assert names["taps"][2].map.shape[:2] == (2, 12)


def test_views_guide(minilm):
    names = run("guides/views.md", **minilm)
    assert all(block.ffn_width == 768 for block in names["Anatomy"].of(minilm["model"]).blocks)
    with torch.no_grad():
        assert torch.isfinite(minilm["model"](**minilm["batch"]).last_hidden_state).all()


def test_training_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    features = [{"input_ids": row, "labels": int(row[0]) % 2} for row in torch.randint(5, 99, (8, 6))]

    def collate(items):
        return {
            "input_ids": torch.stack([item["input_ids"] for item in items]),
            "labels": torch.tensor([item["labels"] for item in items]),
        }

    model = zoo.build_headed("bert")
    before = model.classifier.weight.detach().clone()
    run("guides/training.md", model=model, features=features, collate=collate)
    assert not torch.equal(model.classifier.weight, before)


def test_terms_guide(tmp_path):
    """The term of the guide, and that its table has every term."""
    from slimformer import distill
    from slimformer.registry import TERMS

    table = (ROOT / "docs" / "guides" / "terms.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE) == list(TERMS)
    zoo.build("bert").save_pretrained(tmp_path / "teacher")
    corpus.tokenizer().save_pretrained(tmp_path / "teacher")
    (tmp_path / "text.txt").write_text("the film was good\n" * 40)
    run("guides/terms.md")
    try:
        loop = {"max_steps": 2, "batch_size": 4, "max_length": 16, "log_every": 1, "quiet": True}
        size = {"layers": 1, "hidden": 24, "heads": 4}
        files = {"teacher": tmp_path / "teacher", "corpus": tmp_path / "text.txt"}
        assert "lengths" in distill(**files, **size, **loop, terms="lengths[power=1]:0.1, mlm").losses
    finally:
        TERMS.remove("lengths")


def test_finetune_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus.data_folder(tmp_path / "reviews", train=32, dev=16)
    names = run("methods/finetune.md")
    assert "accuracy" in capsys.readouterr().out
    assert names["result"].folder.joinpath("slimformer.json").exists()
