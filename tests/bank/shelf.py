"""A base with a mask for each kind of task, what the tasks are asked, and what their own models answer."""

from __future__ import annotations

import torch

import slimformer
from slimformer.runtime.native import VARIABLE, kernels
from tests import corpus
from tests.methods.test_every_kind import generated

QUICK = {"max_steps": 3, "batch_size": 8, "lr": 0.05, "blocks": "1-", "quiet": True}
TEXTS = ["the film was good", "dull", "a very poor plot and a great end but not the cast", "fine"]
QUESTIONS = {
    "classification": TEXTS,
    "regression": TEXTS,
    "tagging": [*TEXTS, ["the", "film"]],
    "multiple-choice": [("the film", ["good", "bad"]), ("a plot", ["dull", "fine", "great"])],
    "question-answering": [("the end", "the film was good"), ("a plot", "a great cast and a dull plot")],
    "pruned": TEXTS,
}


def fill(folder):
    """Write the base, and a mask for each kind of task, one of them with neurons and heads removed."""
    corpus.model_folder(folder / "base")
    for kind in QUESTIONS:
        (folder / f"{kind}-data").mkdir()
        name = "classification" if kind == "pruned" else kind
        data = generated(name, folder / f"{kind}-data")
        more = {"structured": "both", "sparsity": 0.5} if kind == "pruned" else {}
        slimformer.mask(model=folder / "base", task=name, data=data, out=folder / kind, **QUICK, **more)
    return folder


def on_every_set(monkeypatch):
    """Goes through the instruction sets of this machine, each with one thread and with two."""
    before = torch.get_num_threads()
    for isa in kernels().instruction_sets():
        monkeypatch.setenv(VARIABLE, isa)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                yield isa, threads
            finally:
                torch.set_num_threads(before)


def expected(folder, kind, questions):
    """What the task's own model gives, one question at a time."""
    loaded = slimformer.load(folder / kind)
    read, model = loaded.processor, loaded.model
    rows = []
    for question in questions:
        if kind == "multiple-choice":
            batch = read([question[0]] * len(question[1]), question[1], padding=True, return_tensors="pt")
            batch = {name: value[None] for name, value in batch.items()}
        elif kind == "tagging":
            words = question.split() if isinstance(question, str) else question
            batch = read([words], is_split_into_words=True, return_tensors="pt")
        else:
            batch = read(
                *([question[0]], [question[1]]) if isinstance(question, tuple) else [question], return_tensors="pt"
            )
        with torch.no_grad():
            output = model(**batch)
        rows.append(output.start_logits[0] if kind == "question-answering" else output.logits[0])
    return rows
