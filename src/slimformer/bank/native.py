"""Many tasks on one base in the native engine: their rows share batches, whatever their kinds and tokenizers are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from slimformer import models
from slimformer.artifact.loading import Loaded
from slimformer.artifact.probe import difference, sampled
from slimformer.artifact.probe.recorded import TOLERANCE, check_reading
from slimformer.bank.sharing import SharedBase
from slimformer.bank.tasks import BankTask
from slimformer.errors import ArtifactError, SlimformerError
from slimformer.inference.door import open_model
from slimformer.inference.native import padded, unpadded
from slimformer.inference.runners import join
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.shared import SharedEncoder, TaskParts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transformers import PreTrainedModel

    from slimformer.artifact.probe import Probe, ProbeOutput
    from slimformer.inference.codec import Encoded, TaskCodec
    from slimformer.inference.runners import Array
    from slimformer.inference.source import Source
    from slimformer.runtime.shared import EncoderTask

#: Inputs that the engine takes.
READ = {"input_ids", "attention_mask", "token_type_ids", "pixel_values"}


@dataclass(frozen=True)
class NativeTask:
    """A task on a base in the native engine.

    Args:
        folder: Where its mask lies.
        native: Its masks and its head.
        own_bytes: What the tensors take that are not the base's.
        codec: How it is asked and answers; None where the artifact does not say what its task is.
    """

    folder: Path
    native: EncoderTask
    own_bytes: int
    codec: TaskCodec | None

    @property
    def mask_bytes(self) -> int:
        """What the masks take."""
        return self.native.mask_bytes


class NativeBase:
    """A base in the native engine, whose weights are in memory once.

    What reads a mask, and the models that `MaskBank.use` gives, are of torch, which opens the base for them anew and
    lets go of it; what a mask recorded at saving is asked of the engine.

    Args:
        source: What was looked up as the base.
        cast_base: Whether the base may be that of the masks cast to 16 bits.
        check: Whether masks must answer as recorded at saving.
    """

    def __init__(self, source: Source, *, cast_base: bool, check: bool) -> None:
        self.source = source
        self.cast_base = cast_base
        self.check = check
        folder, config = Path(models.resolve(source.name)), source.config.to_dict()
        self.encoder = SharedEncoder(folder, config, torch.get_num_threads())
        self._processors: dict[str, Any] = {}

    @property
    def bytes(self) -> int:
        """What the tensors take."""
        return self.encoder.bytes

    def read(self, folder: Path) -> NativeTask:
        """Read the mask of a folder; one for another base, or one that the engine does not run, is refused."""
        task = self.open(folder, check=False)  # the engine itself is asked what was recorded
        native = _native_task(task, self.encoder)
        if self.check:
            loaded = Loaded(task.skeleton, task.processor, task.manifest)
            self._check_recorded(folder, check_reading(folder, loaded), native.native)
        return native

    def open(self, folder: Path, *, check: bool) -> BankTask:
        """The task of a folder in torch."""
        model: Any = open_model(self.source, processor=False, dtype="float32", check=self.check).model
        return BankTask.read(
            folder,
            SharedBase(cast("PreTrainedModel", model)),
            self.source.name,
            self._processors,
            cast_base=self.cast_base,
            check=check,
        )

    def _check_recorded(self, folder: Path, probe: Probe, task: EncoderTask) -> None:
        """Refuse a task that does not answer as its model did at saving, where that was asked what the engine takes."""
        batch = {name: each.tensor().numpy() for name, each in probe.inputs.items()}
        recorded = {name: output for name, output in probe.outputs.items() if name in task.head.outputs}
        if not batch.keys() <= READ or not recorded:
            raise EngineError(
                f"the mask in `{folder}` recorded {', '.join(probe.outputs)} for {', '.join(batch)}, which the engine "
                "cannot compare with; if you trust it, give `check=False`"
            )
        relative, absolute = TOLERANCE[2 if self.cast_base else 4]
        try:
            answers = self._sampled(batch, task)
            expected = recorded if task.head.pools else _without_padding(recorded, batch)
            difference(expected, answers, relative=relative, absolute=absolute, slack=probe.slack())
        # A batch that does not fit together fails in many ways.
        except (SlimformerError, KeyError, ValueError, IndexError, ZeroDivisionError) as error:
            reason = error.reason if isinstance(error, SlimformerError) else f"{type(error).__name__}: {error}"
            raise ArtifactError(
                f"artifact `{folder}` does not give the outputs recorded at saving on the native engine: {reason}; "
                "weights, config or probe are not those of the saving"
            ) from error

    def _sampled(self, batch: dict[str, Array], task: EncoderTask) -> dict[str, ProbeOutput]:
        """What a task answers to a batch, as it is recorded."""
        if "input_ids" in batch:
            batch.setdefault("attention_mask", np.ones(batch["input_ids"].shape, np.int64))
        count = len(batch["pixel_values" if self.encoder.reads_images else "input_ids"])
        rows = np.concatenate(self._ask([task] * count, {"": batch}))
        answers = task.head.named(rows if task.head.pools else padded(rows, batch))
        return {name: sampled(name, torch.from_numpy(np.ascontiguousarray(each))) for name, each in answers.items()}

    def run(
        self, tasks: Mapping[str, NativeTask], encoded: Mapping[str, Encoded], batch_size: int
    ) -> dict[str, dict[str, Array]]:
        """The outputs of several tasks, in batches of rows of like length."""
        lengths = {name: each.features.lengths for name, each in encoded.items()}
        rows = [(name, index) for name in encoded for index in range(len(lengths[name]))]
        rows.sort(key=lambda row: -lengths[row[0]][row[1]])
        outputs: dict[str, dict[int, Mapping[str, Array]]] = {name: {} for name in encoded}
        for start in range(0, len(rows), batch_size):
            batch: dict[str, list[int]] = {}
            for name, index in rows[start : start + batch_size]:
                batch.setdefault(name, []).append(index)
            for name, answer in self._run_batch(tasks, encoded, batch):
                for place, index in enumerate(batch[name]):
                    outputs[name][index] = {key: array[place : place + 1] for key, array in answer.items()}
        return {name: _in_order(of_task) for name, of_task in outputs.items()}

    def _run_batch(
        self, tasks: Mapping[str, NativeTask], encoded: Mapping[str, Encoded], rows: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, dict[str, Array]]]:
        """Run rows of several tasks once; give the outputs of each task."""
        batches = {name: _batch(tasks[name], encoded[name], indexes) for name, indexes in rows.items()}
        answers = iter(self._ask([tasks[name].native for name, of in rows.items() for _ in of], batches))
        for name, indexes in rows.items():
            head, batch = tasks[name].native.head, batches[name]
            answer = np.concatenate([next(answers) for _ in indexes])
            named = head.named(answer if head.pools else padded(answer, batch))
            outputs = _codec(tasks[name]).kind.outputs(named, batch)
            yield name, {key: np.asarray(value) for key, value in outputs.items()}

    def _ask(self, tasks: Sequence[EncoderTask], batches: Mapping[str, dict[str, Array]]) -> list[Array]:
        if self.encoder.reads_images:
            return self.encoder.run_images_of_tasks(
                np.concatenate([batch["pixel_values"] for batch in batches.values()]), tasks
            )
        sequences = [row for batch in batches.values() for row in unpadded(batch, "input_ids")]
        types = None
        if self.encoder.reads_types:
            types = [
                row
                for batch in batches.values()
                for row in unpadded({"token_type_ids": np.zeros_like(batch["input_ids"]), **batch}, "token_type_ids")
            ]
        return self.encoder.run_tasks(sequences, tasks, types)


def _native_task(task: BankTask, encoder: SharedEncoder) -> NativeTask:
    if task.file.kept:
        raise EngineError(
            f"the mask in `{task.folder}` removes neurons and heads, and tasks share whole matrices on the engine; "
            'merge it and open what comes of it with `engine="native"`, or use a bank without `engine`'
        )
    model = task.skeleton
    state = model.state_dict()
    # What lies outside the bare base is the task's, whether its file has it or a head of the base.
    names = [name for name in state if name in task.file.whole or not name.startswith(task.prefix)]
    parts = TaskParts(
        task.folder,
        {**model.config.to_dict(), "architectures": [type(model).__name__]},
        {name.removeprefix(task.prefix): task.file.mask(name).numpy() for name in task.inside},
        {name: state[name].float().numpy(force=True) for name in names},
        task.prefix,
    )
    native = encoder.task(parts)
    kind = None if task.codec is None else task.codec.kind
    missing = [name for name in kind.reads if name not in native.head.outputs] if kind is not None else []
    if missing:
        raise EngineError(
            f"the task of `{task.folder}` needs `{missing[0]}`, and the engine gives {', '.join(native.head.outputs)}; "
            "use a bank without `engine`"
        )
    return NativeTask(task.folder, native, task.own_bytes, task.codec)


def _without_padding(outputs: Mapping[str, ProbeOutput], batch: dict[str, Array]) -> dict[str, ProbeOutput]:
    """What was recorded of tokens, with zeros in the places of padding, which the engine leaves out."""
    mask = batch.get("attention_mask")
    return {
        name: output if mask is None or tuple(output.shape[:2]) != mask.shape else _of_tokens(output, mask)
        for name, output in outputs.items()
    }


def _of_tokens(output: ProbeOutput, mask: Array) -> ProbeOutput:
    size, count = math.prod(output.shape), len(output.values)
    tokens = (np.arange(count) * size // count) // (size // mask.size)
    values = [value if there else 0.0 for value, there in zip(output.values, mask.reshape(-1)[tokens], strict=True)]
    return output.model_copy(update={"values": values})


def _batch(task: NativeTask, encoded: Encoded, indexes: Sequence[int]) -> dict[str, Array]:
    return _codec(task).collate([encoded.features[index] for index in indexes])


def _codec(task: NativeTask) -> TaskCodec:
    assert task.codec is not None  # or nothing would have been encoded for it
    return task.codec


def _in_order(rows: Mapping[int, Mapping[str, Array]]) -> dict[str, Array]:
    ordered = [rows[index] for index in sorted(rows)]
    return {name: join([row[name] for row in ordered]) for name in ordered[0]}
