"""What the teacher computed, kept on disk for runs that go over the same examples again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slimformer.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from slimformer.methods.distill.knowledge import Seen

#: Records with one vector for each token, and those with one for each example.
PER_TOKEN, PER_EXAMPLE = frozenset({"q", "k", "v", "output"}), frozenset({"pooled"})


class TeacherCache:
    """One small file for each example, named by what was fed and who computed it.

    A file that cannot be read counts as absent and is written anew.

    Args:
        folder: Where the files lie.
        names: What is kept.
        teacher: What tells this teacher and block from others, such as a fingerprint.
    """

    def __init__(self, folder: str | Path, names: tuple[str, ...], teacher: str) -> None:
        unknown = sorted(set(names) - PER_TOKEN - PER_EXAMPLE)
        if unknown:
            raise ConfigError(f"`teacher_cache` cannot keep `{unknown[0]}`; leave it out, or learn `relations`")
        self.folder = Path(folder).expanduser()
        self.names = names
        self.teacher = f"{teacher} {','.join(names)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"`teacher_cache` is `{folder}`, which is no folder that can be made: {error}") from error

    def get(self, inputs: dict[str, Tensor], compute: Callable[[], Seen]) -> Seen:
        """The records of a batch: read if every example is known, else computed and kept."""
        mask = inputs.get("attention_mask")
        paths = [
            self._path({name: value[row] for name, value in inputs.items()}, mask, row) for row in self._rows(inputs)
        ]
        kept = [self._read(path) for path in paths]
        known = [each for each in kept if each is not None]
        if len(known) == len(kept):
            device = next(iter(inputs.values())).device
            return {name: self._join([each[name] for each in known], mask, name).to(device) for name in self.names}
        seen = compute()
        for row, (path, there) in enumerate(zip(paths, kept, strict=True)):
            if there is None:
                self._write(path, {name: self._own(seen[name][row], mask, row, name) for name in self.names})
        return seen

    def _rows(self, inputs: dict[str, Tensor]) -> range:
        return range(len(next(iter(inputs.values()))))

    def _path(self, example: dict[str, Tensor], mask: Tensor | None, row: int) -> Path:
        summed = hashlib.sha256(self.teacher.encode())
        for name, value in sorted(example.items()):
            own = value if mask is None or value.dim() != 1 else value[mask[row].bool()]
            summed.update(f"{name} {own.dtype} {tuple(own.shape)}".encode())
            summed.update(own.cpu().contiguous().numpy().tobytes())
        digest = summed.hexdigest()
        return self.folder / digest[:2] / f"{digest}.safetensors"

    def _own(self, value: Tensor, mask: Tensor | None, row: int, name: str) -> Tensor:
        kept = value if mask is None or name in PER_EXAMPLE else value[mask[row].bool()]
        return kept.detach().cpu().contiguous().clone()

    def _join(self, values: list[Tensor], mask: Tensor | None, name: str) -> Tensor:
        if mask is None or name in PER_EXAMPLE:
            return torch.stack(values)
        joined = values[0].new_zeros(*mask.shape, values[0].shape[-1])
        joined[mask.bool().cpu()] = torch.cat(values)
        return joined

    def _read(self, path: Path) -> dict[str, Tensor] | None:
        try:
            found = load_file(path)
        except (FileNotFoundError, SafetensorError):
            return None
        return found if set(found) == set(self.names) else None

    def _write(self, path: Path, tensors: dict[str, Any]) -> None:
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            save_file(tensors, draft)
            draft.replace(path)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            raise TrainingError(
                f"the teacher's records cannot be kept in `{self.folder}`: {error}; make room, or leave out "
                "`--teacher-cache`"
            ) from error
