"""What one would write by hand: whole forwards, all relations at once, autograd for the rest."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from relation_work import Work, report
from transformers import AutoModel, AutoTokenizer


def relations(model: Any, layer: int, inputs: dict[str, torch.Tensor], heads: int) -> dict[str, torch.Tensor]:
    """Queries, keys and values of a block of BERT: [batch, relation heads, length, width]."""
    hidden = model(**inputs, output_hidden_states=True).hidden_states[layer]
    attention = model.encoder.layer[layer].attention.self
    found = {}
    for name in ("query", "key", "value"):
        vectors = getattr(attention, name)(hidden)
        found[name] = vectors.unflatten(-1, (heads, -1)).transpose(1, 2)
    return found


def loss_of(teacher: dict[str, torch.Tensor], student: dict[str, torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    """The loss of MiniLMv2 with padding left out, all heads of a relation at once."""
    hidden = ~mask.bool()[:, None, None, :]
    total = mask.new_zeros((), dtype=torch.float32)
    for name in teacher:
        logs = []
        for side in (teacher, student):
            scores = side[name] @ side[name].mT / math.sqrt(side[name].shape[-1])
            logs.append(scores.masked_fill(hidden, -1e9).log_softmax(-1))
        apart = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)  # [batch, heads, query]
        rows = mask[:, None] / mask.sum(-1)[:, None, None]
        total = total + (apart * rows).sum(-1).mean()
    return total


def main() -> None:
    """Train for some steps and report."""
    work = Work.read()
    tokenizer = AutoTokenizer.from_pretrained(work.teacher)
    teacher = AutoModel.from_pretrained(work.teacher, dtype=torch.float32).eval()
    student = AutoModel.from_config(work.student_config(teacher.config)).train()
    optimizer = torch.optim.AdamW(student.parameters(), lr=6e-4, weight_decay=0.01)
    texts = work.read_texts()
    seconds, tokens = [], []
    for step in range(work.steps):
        rows = [texts[(step * work.batch + row) % len(texts)] for row in range(work.batch)]
        start = time.perf_counter()
        inputs = tokenizer(rows, truncation=True, max_length=work.length, padding=True, return_tensors="pt")
        with torch.no_grad():
            wanted = relations(teacher, len(teacher.encoder.layer) - 1, inputs, work.heads)
        made = relations(student, len(student.encoder.layer) - 1, inputs, work.heads)
        loss_of(wanted, made, inputs["attention_mask"]).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        tokens.append(int(inputs["attention_mask"].sum()))
    report(work, seconds, tokens)


if __name__ == "__main__":
    main()
