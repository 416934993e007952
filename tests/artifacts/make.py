"""Adds to the artifacts of this folder; never replaces one.

An artifact that lies here stands for those users have: it was written by an earlier version and has to load, verify
and answer the same ever after (`tests/test_old_artifacts.py`). So this script is run only to add an artifact, for
something that can be saved and could not before:

    PYTHONPATH=src python -m tests.artifacts.make

Give the new one a function in `MAKERS`; those whose folders exist are left alone, and so are their records in
`answers.json`. A mask has its base beside it, because the folder it was trained on is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers as hf
from PIL import Image

import slimformer
from slimformer.bank import MaskBank
from slimformer.inference.extraction import extract
from tests import corpus, zoo
from tests.artifact.forging import resum
from tests.methods.test_every_kind import generated
from tests.test_old_artifacts import RECORDS, inputs_of, outputs_of

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
VOCABULARY = 5 + len(corpus.WORDS)
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
ODD = {**SMALL, "hidden_size": 12, "intermediate_size": 20}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 32}
QUICK = {"max_steps": 6, "batch_size": 8, "lr": 3e-3, "quiet": True, "threads": 1}
MASKED = {**QUICK, "lr": 0.05, "blocks": "0-"}
TEXTS = ["the film was good", "dull", "a very poor plot and a great end but not the cast"]
#: Kind of task → questions as a bank takes them, all of which fill one batch.
QUESTIONS: dict[str, list[Any]] = {
    "classification": TEXTS,
    "regression": TEXTS,
    "tagging": [["the", "film", "was", "good"], ["a", "dull", "plot", "and"]],
    "multiple-choice": [["the film", ["good", "bad"]], ["a plot", ["dull", "fine"]]],
    "question-answering": [["the end", "the film was good"], ["a plot", "a great cast and a dull plot"]],
}
#: What float64 may change in an answer. An activation that is rounded to another level changes it by far more.
STEADY = {"rtol": 5e-5, "atol": 5e-6}


def main() -> None:
    """Make what is missing in a folder that goes away, and copy it here."""
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="slimformer-artifacts-") as work:
        os.chdir(work)
        for name, make in MAKERS.items():
            if (HERE / name).exists():
                shutil.copytree(HERE / name, name)
                continue
            make(name)
            if (Path(name) / "slimformer.json").exists():
                records[name] = record_of(name)
            shutil.copytree(name, HERE / name)
            RECORDS.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")
            sys.stdout.write(f"{name}\n")


def record_of(name: str) -> dict[str, Any]:
    """A request to an artifact, what its model gives, and what a bank answers if it is a mask."""
    loaded = slimformer.load(name)
    kind = None if loaded.manifest.task is None else loaded.manifest.task.kind
    record: dict[str, Any] = {"request": request_for(kind)}
    inputs = inputs_of(loaded.processor, record["request"])
    outputs = outputs_of(loaded.model, inputs)
    check_steady(name, loaded.model, inputs, outputs)
    record["outputs"] = {key: shortened(value.tolist()) for key, value in outputs.items()}
    if (Path(name) / "mask.safetensors").exists():
        assert kind is not None
        bank = MaskBank()
        bank.add("task", name)
        record["base"] = Path(bank.source).name
        record["questions"] = QUESTIONS[kind]
        record["answers"] = bank.predict({"task": QUESTIONS[kind]})["task"]
    return record


def shortened(values: Any) -> Any:
    """Numbers with the digits a float32 has."""
    return [shortened(value) for value in values] if isinstance(values, list) else float(f"{values:.8g}")


def request_for(kind: str | None) -> dict[str, Any]:
    """Arguments of a tokenizer or image processor."""
    questions = QUESTIONS.get(kind or "", TEXTS)
    if kind == "image-classification":
        pixels = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3))
        return {"images": pixels.tolist()}
    if kind == "tagging":
        return {"text": questions, "is_split_into_words": True, "padding": True}
    if kind == "question-answering":
        first, second = ([each[side] for each in questions] for side in (0, 1))
        return {"text": first, "text_pair": second, "padding": True}
    if kind == "multiple-choice":
        pairs = [(question, choice) for question, choices in questions for choice in choices]
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        return {"text": first, "text_pair": second, "padding": True, "choices": 2}
    return {"text": questions, "padding": True}


def check_steady(name: str, model: Any, inputs: dict[str, Any], outputs: dict[str, torch.Tensor]) -> None:
    """Refuse a model whose answer hangs on the last bits, as where an activation lies between two levels."""
    doubled = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    exact = outputs_of(model.double(), doubled)
    for key, value in outputs.items():
        torch.testing.assert_close(
            value, exact[key].float(), **STEADY, msg=f"`{name}` is not steady; take another seed"
        )


def make_base(name: str, sizes: dict[str, int]) -> None:
    """A random encoder, as `save_pretrained` writes it."""
    torch.manual_seed(0)
    zoo.enliven(hf.BertModel(hf.BertConfig(**sizes, **TEXT))).save_pretrained(name)
    corpus.tokenizer().save_pretrained(name)


def data_for(kind: str) -> str:
    """Generated data of a kind of task."""
    folder = Path(f"{kind}-data")
    if not folder.exists():
        folder.mkdir()
        generated(kind, folder)
    return str(folder)


def make_classifier(name: str) -> None:
    """A plain artifact."""
    slimformer.finetune(model="base", task="classification", data=data_for("classification"), out=name, **QUICK)


def make_sharded(name: str) -> None:
    """The same model in several files, which `save` does not write but reads."""
    shutil.copytree("classifier", name)
    (Path(name) / "model.safetensors").unlink()
    slimformer.load("classifier").model.save_pretrained(name, max_shard_size="8KB")
    resum(Path(name))


def make_packed(name: str, **settings: Any) -> None:
    """A classifier in a few levels per weight."""
    settings = {"activations": "none", **QUICK, **settings}
    slimformer.quantize(
        model="classifier", task="classification", data=data_for("classification"), out=name, **settings
    )


def make_mask(name: str, kind: str = "classification", base: str = "base", **settings: Any) -> None:
    """A mask for a task."""
    slimformer.mask(model=base, task=kind, data=data_for(kind), out=name, **{**MASKED, **settings})


def make_sentence_encoder(name: str) -> None:
    """A student that says how it pools."""
    text = Path("text.txt")
    rows = (corpus.data_folder(Path("texts")) / "train.tsv").read_text().splitlines()[1:]
    text.write_text("\n".join(row.split("\t")[0] for row in rows) + "\n")
    shape = {"layers": 1, "hidden": 12, "heads": 2, "max_length": 16}
    slimformer.distill(teacher="base", corpus=[str(text)], pooled="mean", out=name, **shape, **QUICK)


def make_image_classifier(name: str) -> None:
    """A small ViT on noise of three means."""
    torch.manual_seed(0)
    zoo.enliven(hf.ViTModel(hf.ViTConfig(**SMALL, image_size=8, patch_size=4))).save_pretrained("viewer")
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    Path("viewer/preprocessor_config.json").write_text(json.dumps(processor))
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("dev", 4)):
        for number, label in enumerate(("dark", "grey", "light")):
            folder = Path("pictures") / split / label
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(80 * number, 80 * number + 80, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    slimformer.finetune(model="viewer", task="image-classification", data="pictures", out=name, **QUICK)


def make_decoder(name: str) -> None:
    """A small Llama."""
    torch.manual_seed(0)
    config = hf.LlamaConfig(**SMALL, **TEXT, num_key_value_heads=1, bos_token_id=2, eos_token_id=3)
    zoo.enliven(hf.LlamaForCausalLM(config)).save_pretrained("llama")
    corpus.tokenizer().save_pretrained("llama")
    modelling = {"task": "language-modelling", "data": data_for("language-modelling"), "max_length": 16}
    slimformer.finetune(model="llama", out=name, **modelling, **QUICK)


def make_packed_decoder(name: str) -> None:
    """A small GPT-2, whose tables are tied and whose matrices lie the other way round."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 32}
    config = hf.GPT2Config(**sizes, bos_token_id=2, eos_token_id=3)
    zoo.enliven(hf.GPT2LMHeadModel(config)).save_pretrained("gpt2")
    corpus.tokenizer().save_pretrained("gpt2")
    modelling = {"task": "language-modelling", "data": data_for("language-modelling"), "max_length": 16}
    slimformer.quantize(model="gpt2", out=name, weights="4", activations="none", **modelling, **QUICK)


def make_elastic(name: str) -> None:
    """A classifier with nested neurons, heads and blocks."""
    sizes = {"sizes": "0.25,0.5,1", "head_sizes": "0.5,1,1", "skip": True, "calibration": 16}
    task = {"task": "classification", "data": data_for("classification")}
    slimformer.elastic(model="base", out=name, **task, **sizes, **QUICK)


def make_nested(name: str) -> None:
    """One with nested neurons alone, in ternary weights."""
    task = {"task": "classification", "data": data_for("classification")}
    slimformer.elastic(model="base", out="neurons", sizes="0.3,1", calibration=16, **task, **QUICK)
    slimformer.quantize(model="neurons", out=name, activations="none", **task, **QUICK)


#: Name → what makes it, in an order in which each finds those it starts from.
MAKERS: dict[str, Callable[[str], Any]] = {
    "base": partial(make_base, sizes=SMALL),
    "base-odd": partial(make_base, sizes=ODD),
    "classifier": make_classifier,
    "sharded": make_sharded,
    "binary": partial(make_packed, weights="binary"),
    "ternary": partial(make_packed, weights="ternary"),
    "ternary-small": partial(make_packed, weights="ternary", packing="small"),
    "int2": partial(make_packed, weights="2"),
    "int4": partial(make_packed, weights="4"),
    "int8": partial(make_packed, weights="8"),
    "int4-groups": partial(make_packed, weights="4", embedding="8", granularity="group", group_size=6),
    "rounded": partial(make_packed, weights="ternary", activations="int8"),
    "rounded-tensor": partial(make_packed, weights="8", activations="int8", reference=True, asymmetric=True),
    "mask": make_mask,
    "mask-odd": partial(make_mask, base="base-odd"),
    "mask-structured": partial(make_mask, structured="both", sparsity=0.5),
    "mask-regression": partial(make_mask, kind="regression"),
    "mask-tagging": partial(make_mask, kind="tagging"),
    "mask-multiple-choice": partial(make_mask, kind="multiple-choice"),
    "mask-question-answering": partial(make_mask, kind="question-answering"),
    "sentence-encoder": make_sentence_encoder,
    "image-classifier": make_image_classifier,
    "decoder": make_decoder,
    "packed-decoder": make_packed_decoder,
    "elastic": make_elastic,
    "per-block": lambda name: extract("elastic", name, allocation="S,XL"),
    "packed-elastic": make_nested,
    "packed-blocks": lambda name: extract("packed-elastic", name, allocation="S,XL"),
}

if __name__ == "__main__":
    main()
