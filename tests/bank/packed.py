"""A packed base with masks on it."""

from __future__ import annotations

import torch
import transformers as hf

import slimformer
from slimformer import Anatomy, models
from slimformer.anatomy.tied import tied_modules
from slimformer.artifact import Step, pack, save
from slimformer.views import QuantizedView, Rounding, attach, round_activations
from tests import corpus, zoo
from tests.bank.shelf import QUICK
from tests.methods.test_every_kind import generated

KINDS = ("classification", "tagging")


def write_base(folder, view="ternary", *, rounding=True, group=None, head=None):
    """A small random BERT whose blocks, pooler and words are packed, with rounded activations."""
    plain = corpus.model_folder(folder.parent / f"{folder.name}-plain")
    torch.manual_seed(1)
    model = zoo.enliven((head or hf.BertModel)(hf.BertConfig.from_pretrained(plain))).eval()
    anatomy = Anatomy.of(model)
    matrices = [matrix for block in anatomy.blocks for matrix in block.matrices.values()]
    for matrix in [*matrices, anatomy.pooler]:
        if matrix is not None:
            attach(
                matrix, QuantizedView(view, **({} if group is None else {"granularity": "group", "group_size": group}))
            )
    words = QuantizedView("ternary")
    for module in (anatomy.word_embedding, *tied_modules(anatomy)):
        attach(module, words)
    if rounding:
        round_activations(model, Rounding())
    save(folder, pack(model), processor=models.load_processor(plain), step=Step(method="quantize"))
    return folder


def write_mask(folder, base, kind="classification", **settings):
    """A mask trained for a few steps on a base."""
    data = folder.parent / f"{folder.name}-data"
    data.mkdir()
    generated(kind, data)
    slimformer.mask(model=base, task=kind, data=data, out=folder, **{**QUICK, "initial_sparsity": 0.2, **settings})
    return folder
