"""PEFT LoRA adapters on one model, asked in both ways that PEFT has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoTokenizer

from slimformer import models

if TYPE_CHECKING:
    from pathlib import Path


def load(model: Any, folder: Path, tasks: int, batch_size: int) -> tuple[Any, Any]:
    """One base and the adapters, asked in batches of texts of like length whatever their tasks."""
    adapted, tokenizer = _adapted(model, folder, tasks)

    def ask(requests: dict[str, list[str]]) -> None:
        rows = [(name, text) for name, texts in requests.items() for text in texts]
        lengths = [len(ids) for ids in tokenizer([text for _, text in rows])["input_ids"]]
        order = sorted(range(len(rows)), key=lambda row: -lengths[row])
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                chosen = [rows[row] for row in order[start : start + batch_size]]
                batch = tokenizer([text for _, text in chosen], padding=True, return_tensors="pt")
                adapted(**batch, adapter_names=[name for name, _ in chosen])

    return adapted, ask


def load_by_task(model: Any, folder: Path, tasks: int) -> tuple[Any, Any]:
    """The same, asked adapter by adapter, with all texts of a task in a batch."""
    adapted, tokenizer = _adapted(model, folder, tasks)

    def ask(requests: dict[str, list[str]]) -> None:
        with torch.inference_mode():
            for name, texts in requests.items():
                adapted.set_adapter(name)
                adapted(**tokenizer(texts, padding=True, return_tensors="pt"))

    return adapted, ask


def _adapted(model: Any, folder: Path, tasks: int) -> tuple[Any, Any]:
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(model, folder / "task0", adapter_name="task0")
    for number in range(1, tasks):
        adapted.load_adapter(folder / f"task{number}", adapter_name=f"task{number}")
    return adapted.eval(), AutoTokenizer.from_pretrained(models.resolve("minilm"))
