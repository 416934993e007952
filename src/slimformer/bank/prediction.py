"""Answering requests to several tasks in as few forwards as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimformer.bank.mixing import Stretch, UnmixableError, head_on, run_mixed
from slimformer.errors import ArtifactError, DataError
from slimformer.inference.runners import TorchGenerator, TorchRunner, as_array, join, run
from slimformer.tasks.features import as_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transformers import PreTrainedModel

    from slimformer.bank.sharing import SharedBase
    from slimformer.bank.tasks import BankTask
    from slimformer.inference.codec import Encoded, TaskCodec

    #: A row of a batch: its task and its place among the task's items.
    Row = tuple[str, int]
    Arrays = dict[str, np.ndarray[Any, Any]]


def predict(
    tasks: Mapping[str, Any],
    requests: Mapping[str, Sequence[Any]],
    run: Callable[[Mapping[str, Encoded]], Mapping[str, Arrays]],
    *,
    raw: bool,
) -> dict[str, list[Any]]:
    """Answer requests to several tasks.

    Args:
        tasks: The tasks by name, each with its `codec`.
        requests: Task → requests.
        run: Gives the outputs for encoded requests.
        raw: Give what the heads give, item by item, instead of answers.
    """
    for name, asked in requests.items():
        if isinstance(asked, str | bytes):
            raise DataError(f"the requests to task `{name}` are one text, `{asked[:40]!s}`; give a list of texts")
    codecs = {name: _codec(name, tasks[name]) for name, asked in requests.items() if asked}
    encoded = {name: codec.encode(requests[name]) for name, codec in codecs.items()}
    outputs = run(encoded)
    return {
        name: _collect(codecs[name], encoded[name], outputs[name], raw=raw) if name in encoded else []
        for name in requests
    }


@torch.inference_mode()
def run_in_torch(
    base: SharedBase,
    tasks: Mapping[str, BankTask],
    ready: Mapping[str, PreTrainedModel],
    encoded: Mapping[str, Encoded],
    batch_size: int,
) -> dict[str, Arrays]:
    """The outputs of several tasks.

    Args:
        base: The shared base.
        tasks: The tasks by name.
        ready: Models of some of them whose weights are made already.
        encoded: Task → what it is asked.
        batch_size: Rows per forward.
    """
    outputs: dict[str, Arrays] = {}
    for names in _alike(tasks, encoded):
        outputs |= _run_mixed(base, tasks, ready, {name: encoded[name] for name in names}, batch_size)
    for name in encoded:
        if name not in outputs:
            outputs[name] = _run_alone(name, tasks[name], ready.get(name), encoded[name], batch_size)
    return outputs


def _alike(tasks: Mapping[str, BankTask], encoded: Mapping[str, Encoded]) -> list[list[str]]:
    """The tasks whose rows can share batches: those that feed the base the same inputs, padded the same way."""
    groups: list[tuple[Any, list[str]]] = []
    for name in encoded:
        if not _mixes(name, tasks[name]):
            continue
        codec = _codec(name, tasks[name])
        feeding = (codec.kind.request_collator(codec.processor), sorted(encoded[name].features[0]))
        for other, names in groups:
            if other == feeding:
                names.append(name)
                break
        else:
            groups.append((feeding, [name]))
    return [names for _, names in groups]


def _mixes(name: str, task: BankTask) -> bool:
    """Whether a task's rows can go through the base together with those of others."""
    kind = _codec(name, task).kind
    if any(tensor.startswith(task.prefix) for tensor in task.file.whole):
        return False  # its base is not the one they share: a norm or a pooler is its own
    # Where an item has several rows, the rows of a batch are not its items; text is generated token by token.
    return task.shares_processor and not task.file.kept and "choices" not in kind.axes and not kind.new_tokens


def _run_mixed(
    base: SharedBase,
    tasks: Mapping[str, BankTask],
    ready: Mapping[str, PreTrainedModel],
    encoded: Mapping[str, Encoded],
    batch_size: int,
) -> dict[str, Arrays]:
    """The outputs of several tasks whose rows share batches; nothing where the base cannot do that."""
    # Rows of a task stay together, so that its weights are masked for few batches.
    rows = [(name, index) for name in encoded for index in _by_length(encoded[name])]
    found: dict[str, list[tuple[int, Mapping[str, Any]]]] = {name: [] for name in encoded}
    for start in range(0, len(rows), batch_size):
        try:
            _run_batch(base, tasks, ready, encoded, rows[start : start + batch_size], found)
        except UnmixableError:  # a family whose matrices see other things than rows
            return {}
    return {name: _in_order(parts) for name, parts in found.items()}


def _run_batch(
    base: SharedBase,
    tasks: Mapping[str, BankTask],
    ready: Mapping[str, PreTrainedModel],
    encoded: Mapping[str, Encoded],
    batch: Sequence[Row],
    found: dict[str, list[tuple[int, Mapping[str, Any]]]],
) -> None:
    """Run one batch, and add what each task's rows gave to `found`."""
    names = list(dict.fromkeys(name for name, _ in batch))
    items = [encoded[name].features[index] for name, index in batch]
    device = next(base.bare.parameters()).device
    inputs = {
        name: tensor.to(device) for name, tensor in as_tensors(_codec(names[0], tasks[names[0]]).collate(items)).items()
    }
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
    for name, stretch, outputs in zip(names, stretches, run_mixed(base.bare, masked, stretches, inputs), strict=True):
        cut = {key: value[stretch.start : stretch.stop] for key, value in inputs.items()}
        answer = _codec(name, tasks[name]).kind.outputs(head_on(tasks[name].skeleton, outputs, cut), cut)
        arrays = {key: as_array(value) for key, value in answer.items()}
        for place, (_, index) in enumerate(batch[stretch.start : stretch.stop]):
            found[name].append((index, {key: array[place : place + 1] for key, array in arrays.items()}))


def _in_order(parts: Sequence[tuple[int, Mapping[str, Any]]]) -> Arrays:
    ordered = [arrays for _, arrays in sorted(parts, key=lambda part: part[0])]
    return {name: join([arrays[name] for arrays in ordered]) for name in ordered[0]}


def _shown(task: BankTask, model: PreTrainedModel | None) -> Any:
    if model is None:
        return task.shown
    state = model.base_model.state_dict()
    return lambda name, weight, place: state.get(name, weight)


def _run_alone(name: str, task: BankTask, model: PreTrainedModel | None, encoded: Encoded, batch_size: int) -> Arrays:
    codec = _codec(name, task)
    model = task.lazy() if model is None else model
    generates = bool(codec.kind.new_tokens)
    runner = TorchGenerator(model, codec.kind, codec.processor) if generates else TorchRunner(model, codec.kind)
    return run(encoded.features, codec.collate, runner, batch_size)


def _collect(codec: TaskCodec, encoded: Encoded, outputs: Arrays, *, raw: bool) -> list[Any]:
    if not raw:
        return codec.decode(encoded, outputs)
    parts = list(outputs.values())
    return list(zip(*parts, strict=True)) if len(parts) > 1 else list(parts[0])


def _by_length(encoded: Encoded) -> list[int]:
    return [int(index) for index in np.argsort([-length for length in encoded.features.lengths], kind="stable")]


def _codec(name: str, task: Any) -> TaskCodec:
    codec: TaskCodec | None = task.codec
    if codec is None:
        raise ArtifactError(f"the artifact of task `{name}` does not say what it was made for; use its model directly")
    return codec
