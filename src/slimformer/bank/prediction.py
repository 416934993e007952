"""Answering questions to several tasks in as few forwards as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimformer.bank.mixing import Stretch, UnmixableError, head_on, run_mixed
from slimformer.errors import ArtifactError, DataError
from slimformer.evaluation import item_length

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedModel

    from slimformer.bank.answering import Answerer, Asked
    from slimformer.bank.sharing import SharedBase
    from slimformer.bank.tasks import BankTask

    #: A row of a batch: its task and its place among the task's items.
    Row = tuple[str, int]


@torch.inference_mode()
def predict(
    base: SharedBase,
    tasks: Mapping[str, BankTask],
    ready: Mapping[str, PreTrainedModel],
    requests: Mapping[str, Sequence[Any]],
    batch_size: int,
    *,
    raw: bool,
) -> dict[str, list[Any]]:
    """Answer questions to several tasks.

    Args:
        base: The shared base.
        tasks: The tasks by name.
        ready: Models of some of them whose weights are made already.
        requests: Task → questions.
        batch_size: Rows per forward.
        raw: Give what the heads give, item by item, instead of answers.
    """
    for name, questions in requests.items():
        if isinstance(questions, str | bytes):
            raise DataError(f"the questions to task `{name}` are one text, `{questions[:40]!s}`; give a list of texts")
    asked = {name: _answerer(name, tasks[name]).ask(questions) for name, questions in requests.items() if questions}
    found: dict[Row, Any] = {}
    mixed = [name for name in asked if _mixes(tasks[name])]
    # Rows of a task stay together, so that its weights are masked for few batches.
    rows = [(name, index) for name in mixed for index in _by_length(asked[name])]
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        try:
            found.update(_run_mixed(base, tasks, ready, asked, batch))
        except UnmixableError:  # a family whose matrices see other things than rows
            mixed = []
            break
    for name in asked:
        if name not in mixed:
            found.update(_run_alone(name, tasks[name], ready.get(name), asked[name], batch_size))
    return {name: _collect(name, tasks[name], asked.get(name), found, raw=raw) for name in requests}


def _mixes(task: BankTask) -> bool:
    """Whether a task's rows can go through the base together with those of others."""
    kind = None if task.answerer is None else task.answerer.task.kind
    return task.shares_processor and not task.file.kept and kind != "multiple-choice"


def _run_mixed(
    base: SharedBase,
    tasks: Mapping[str, BankTask],
    ready: Mapping[str, PreTrainedModel],
    asked: Mapping[str, Asked],
    batch: Sequence[Row],
) -> dict[Row, Any]:
    names = list(dict.fromkeys(name for name, _ in batch))
    first = tasks[names[0]].answerer
    assert first is not None
    inputs = first.collate([asked[name].items[index] for name, index in batch])
    device = next(base.bare.parameters()).device
    inputs = {name: value.to(device) for name, value in inputs.items()}
    stretches, begin = [], 0
    for name in names:
        count = sum(name == of for of, _ in batch)
        stretches.append(Stretch(begin, begin + count, _shown(tasks[name], ready.get(name))))
        begin += count
    masked = {
        inner
        for name in names
        for full in tasks[name].inside
        if (inner := full.removeprefix(tasks[name].prefix)) in base.names
    }
    found: dict[Row, Any] = {}
    for name, stretch, outputs in zip(names, stretches, run_mixed(base.bare, masked, stretches, inputs), strict=True):
        cut = {key: value[stretch.start : stretch.stop] for key, value in inputs.items()}
        answer = head_on(tasks[name].skeleton, outputs, cut)
        found.update(zip(batch[stretch.start : stretch.stop], _rows(answer), strict=True))
    return found


def _shown(task: BankTask, model: PreTrainedModel | None) -> Any:
    if model is None:
        return task.shown
    state = model.base_model.state_dict()
    return lambda name, weight, place: state.get(name, weight)


def _run_alone(
    name: str, task: BankTask, model: PreTrainedModel | None, asked: Asked, batch_size: int
) -> dict[Row, Any]:
    answerer = _answerer(name, task)
    model = task.lazy() if model is None else model
    device = next(model.parameters()).device
    found: dict[Row, Any] = {}
    order = _by_length(asked)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        inputs = answerer.collate([asked.items[index] for index in chosen])
        answer = model(**{key: value.to(device) for key, value in inputs.items()})
        found.update(zip([(name, index) for index in chosen], _rows(answer), strict=True))
    return found


def _rows(answer: Any) -> list[Any]:
    """The outputs of a head, row by row."""
    if "start_logits" in answer:
        pair = (answer.start_logits.float().cpu().numpy(), answer.end_logits.float().cpu().numpy())
        return list(zip(*pair, strict=True))
    return list(answer.logits.float().cpu().numpy())


def _collect(name: str, task: BankTask, asked: Asked | None, found: Mapping[Row, Any], *, raw: bool) -> list[Any]:
    if asked is None:
        return []
    rows = [found[name, index] for index in range(len(asked.items))]
    if raw:
        return rows
    paired = isinstance(rows[0], tuple)
    outputs = tuple(_stack(part) for part in zip(*rows, strict=True)) if paired else _stack(rows)
    return _answerer(name, task).answers(asked, outputs)


def _stack(rows: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Rows as one array; those of shorter batches are filled up with what never wins."""
    longest = max(row.shape[0] for row in rows)
    fill = [[(0, longest - row.shape[0]), *[(0, 0)] * (row.ndim - 1)] for row in rows]
    return np.stack([np.pad(row, pad, constant_values=-1e9) for row, pad in zip(rows, fill, strict=True)])


def _by_length(asked: Asked) -> list[int]:
    lengths = [-item_length(item) for item in asked.items]
    return [int(index) for index in np.argsort(lengths, kind="stable")]


def _answerer(name: str, task: BankTask) -> Answerer:
    if task.answerer is None:
        raise ArtifactError(f"the artifact of task `{name}` does not say what it was made for; use its model directly")
    return task.answerer
