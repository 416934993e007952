"""Who teaches: a frozen model, and what it computed, kept on disk for runs over the same examples."""

from __future__ import annotations

import hashlib
import math
import os
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slimformer.errors import ConfigError, TrainingError
from slimformer.files import as_path
from slimformer.objectives.recording import LABELS, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from slimformer.objectives.recording import Activations, Request

#: Names, or their ends, of activations with one vector for each token, and how names of those with one
#: for each example begin.
PER_TOKEN = frozenset({"q", "k", "v", "output", "attention_output", "mha", "embeddings", "last_hidden", "features"})
PER_EXAMPLE = "pooled."
#: Bytes of a file beside what it holds, at most.
FILE = 1024


class Source(Protocol):
    """Something that terms learn from: another model, or the student itself at another size."""

    def __call__(self, model: nn.Module, inputs: dict[str, Any], request: Request) -> Activations:
        """What it computes for a batch, without gradient unless terms learn through it.

        Args:
            model: The student as it is called, wrapped or not.
            inputs: The batch.
            request: What to keep.
        """
        ...


class Teacher:
    """A frozen model in eval mode, run only as far as it is needed.

    Args:
        model: The model; it gets no gradients from now on.
        cache: Where what it computed is kept; None to compute it every time.
        read_scores: Take scores from the attention itself; see `Recorder`.
    """

    def __init__(self, model: nn.Module, cache: TeacherCache | None = None, *, read_scores: bool = False) -> None:
        self.model = model.eval().requires_grad_(False)
        self.cache = cache
        self.read_scores = read_scores
        self._recorders: dict[tuple[str, ...], Recorder] = {}

    @torch.no_grad()
    def __call__(self, model: nn.Module, inputs: dict[str, Any], request: Request) -> Activations:
        """What the teacher computes for a batch; `model` is not looked at."""
        device = next(iter(inputs.values())).device
        if next(self.model.parameters()).device != device:
            self.model.to(device)
        if request.names not in self._recorders:
            self._recorders[request.names] = Recorder(self.model, request, read_scores=self.read_scores)
        recorder = self._recorders[request.names]
        cache = self.cache if self.cache is not None and self.cache.names == request.names else None
        activations = recorder(inputs) if cache is None else cache.get(inputs, recorder)
        # Losses are computed in the student's precision, whatever the teacher's is.
        return {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in activations.items()}


class TeacherCache:
    """One small file for each example, named by what was fed and who computed it.

    A file that cannot be read counts as absent and is written anew. Of a batch all examples are kept or, where they
    would not fit, none: so a run that was killed while it wrote computes what it would have computed, bit by bit.

    Args:
        folder: Where the files lie.
        names: What is kept, as activations are named.
        teacher: What tells this teacher and block from others, such as a fingerprint.
        limit: Bytes that all files of the folder may take; None for as many as there are.
        processes: How many share the folder; each fills its part of what is left.
    """

    def __init__(
        self,
        folder: str | Path,
        names: tuple[str, ...],
        teacher: str,
        *,
        limit: int | None = None,
        processes: int = 1,
    ) -> None:
        unknown = sorted(name for name in names if not name.startswith(PER_EXAMPLE) and _kind(name) not in PER_TOKEN)
        if unknown:
            raise ConfigError(f"`teacher_cache` cannot keep `{unknown[0]}`; leave it out, or learn `relations`")
        self.folder = as_path(folder)
        self.names = names
        self.teacher = f"{teacher} {','.join(names)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"`teacher_cache` is `{folder}`, which is no folder that can be made: {reason}; give another"
            ) from error
        self.room = math.inf if limit is None else (limit - self._size()) / processes

    def get(self, inputs: dict[str, Tensor], compute: Callable[[dict[str, Tensor]], Activations]) -> Activations:
        """The records of a batch: what is known is read, the rest is computed, and kept where there is room.

        Args:
            inputs: The batch.
            compute: Computes the records of one.
        """
        fed = {name: value for name, value in inputs.items() if name not in LABELS}
        mask = fed.get("attention_mask")
        count = len(next(iter(fed.values())))
        paths = [self._path({name: value[row] for name, value in fed.items()}, mask, row) for row in range(count)]
        records = {row: record for row, path in enumerate(paths) if (record := self._read(path)) is not None}
        missing = [row for row in range(count) if row not in records]
        if len(missing) == count or (missing and self._fits(records, mask, missing)):
            computed = compute(inputs)
            cut = {row: self._cut(computed, mask, row) for row in missing}
            if self._fits(cut, mask, missing):
                for row, record in cut.items():
                    self._write(paths[row], record)
            return computed
        if missing:
            computed = compute({name: value[missing] for name, value in inputs.items()})
            own = None if mask is None else mask[missing]
            records |= {row: self._cut(computed, own, number) for number, row in enumerate(missing)}
        device = next(iter(fed.values())).device
        return {
            name: self._join([records[row][name] for row in range(count)], mask, name).to(device) for name in self.names
        }

    def _fits(self, records: dict[int, Activations], mask: Tensor | None, rows: Sequence[int]) -> bool:
        """Whether there is room for some examples, by how large the record of another one is."""
        row, record = next(iter(records.items()))
        needed = FILE * len(rows)
        for name, value in record.items():
            each = value.numel() * value.element_size()
            if mask is None or name.startswith(PER_EXAMPLE):
                needed += each * len(rows)
            else:
                needed += each // max(1, int(mask[row].sum())) * int(mask[list(rows)].sum())
        return needed <= self.room

    def _size(self) -> int:
        """Bytes of all files there are."""
        return sum(path.stat().st_size for path in self.folder.glob("*/*.safetensors"))

    def _path(self, example: dict[str, Tensor], mask: Tensor | None, row: int) -> Path:
        summed = hashlib.sha256(self.teacher.encode())
        for name, value in sorted(example.items()):
            own = value if mask is None or value.dim() != 1 else value[mask[row].bool()]
            summed.update(f"{name} {own.dtype} {tuple(own.shape)}".encode())
            summed.update(own.cpu().contiguous().numpy().tobytes())
        digest = summed.hexdigest()
        return self.folder / digest[:2] / f"{digest}.safetensors"

    def _cut(self, computed: Activations, mask: Tensor | None, row: int) -> Activations:
        """What belongs to one example, without padding."""
        record = {}
        for name in self.names:
            value = computed[name][row]
            own = value if mask is None or name.startswith(PER_EXAMPLE) else value[mask[row].bool()]
            record[name] = own.detach().cpu().contiguous().clone()
        return record

    def _join(self, values: list[Tensor], mask: Tensor | None, name: str) -> Tensor:
        if mask is None or name.startswith(PER_EXAMPLE):
            return torch.stack(values)
        joined = values[0].new_zeros(*mask.shape, values[0].shape[-1])
        joined[mask.bool().cpu()] = torch.cat(values)
        return joined

    def _read(self, path: Path) -> dict[str, Tensor] | None:
        if not path.is_file():  # a pipe of this name would never begin
            return None
        try:
            stored = load_file(path)
        except (FileNotFoundError, SafetensorError):
            return None
        return stored if set(stored) == set(self.names) else None

    def _write(self, path: Path, tensors: dict[str, Any]) -> None:
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            save_file(tensors, draft)
            draft.replace(path)
            self.room -= path.stat().st_size
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            raise TrainingError(
                f"the teacher's records cannot be kept in `{self.folder}`: {error}; make room, or leave out "
                "`--teacher-cache`"
            ) from error


def _kind(name: str) -> str:
    """What an activation is, whatever block it is of."""
    block, _, kind = name.partition(".")
    return kind if block.isdecimal() else name
