"""What an ONNX file is, by its own metadata; or, of a file that slimformer did not write, by the config beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slimformer import models
from slimformer.artifact.layout import CONFIG
from slimformer.artifact.loading import checked_manifest
from slimformer.artifact.storage.handler import storage_of
from slimformer.artifact.storage.onnx import MODEL, OnnxRecord, OnnxStorage, data_beside
from slimformer.errors import ArtifactError
from slimformer.inference.source import Source, is_artifact
from slimformer.models.sentence import SentenceSettings
from slimformer.runtime.onnx import OnnxSession, check_extra

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

    from slimformer.artifact import TaskRecord

#: How the name of an ONNX file ends.
SUFFIX = ".onnx"


def onnx_file(name: str | Path) -> Path | None:
    """The ONNX file that a name stands for: that file, or the one of a folder with no other model; None for others."""
    if str(name) in models.ALIASES:
        return None
    path = models.located(name)
    if path.is_dir():
        stored = (path / MODEL).is_file() and storage_of(path).name == OnnxStorage.name
        return path / MODEL if stored else None
    if path.suffix.lower() != SUFFIX:
        return None
    if not path.is_file():
        raise ArtifactError(f"no file at `{name}`; give an ONNX file, or a folder that `slimformer export` wrote")
    return path


@dataclass(frozen=True)
class OnnxSource(Source):
    """An ONNX file, opened.

    Args:
        name: As the user gave it.
        config: The model's config.
        manifest: What a folder of `slimformer export` says of itself; None for a file.
        session: The file in ONNX Runtime.
        record: What the file says of itself; None where slimformer did not write it.
    """

    session: OnnxSession = field(kw_only=True)
    record: OnnxRecord | None = field(kw_only=True)

    @property
    def folder(self) -> Path:
        """Where the file lies, and its tokenizer beside it."""
        return self.session.path.parent

    @property
    def task(self) -> TaskRecord | None:
        """What the model was made for, by the file alone."""
        return None if self.record is None else self.record.made_for()

    @property
    def storage(self) -> str:
        """ONNX."""
        return OnnxStorage.name

    def sentence(self) -> SentenceSettings | None:
        """How outputs become one vector, by the file alone, or by the files beside one of somebody else."""
        if self.record is None:
            return SentenceSettings.read(self.folder)
        return None if self.record.sentence is None else self.record.sentence.settings()

    @property
    def bytes(self) -> int:
        """Bytes of the file and of its data beside it."""
        path = self.session.path
        return sum(file.stat().st_size for file in (path, data_beside(path)) if file.is_file())

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return _count(self.session.path) if self.record is None else self.record.parameters


def look_up_onnx(name: str | Path, file: Path, *, threads: int | None = None, device: str | None = None) -> OnnxSource:
    """Open an ONNX file and say what it is.

    Args:
        name: As the user gave it.
        file: What `onnx_file` found.
        threads: Threads of one run; None for what PyTorch has chosen.
        device: Where to run; the CPU when not given.
    """
    import torch

    folder = models.located(name)
    manifest = checked_manifest(folder) if folder.is_dir() and is_artifact(folder) else None
    session = OnnxSession(file, threads or torch.get_num_threads(), device)
    record = OnnxRecord.read(session.metadata, name)
    config = _config_beside(name, file) if record is None else record.config(name)
    return OnnxSource(str(name), config, manifest, session=session, record=record)


def _config_beside(name: str | Path, file: Path) -> PretrainedConfig:
    if not (file.parent / CONFIG).is_file():
        raise ArtifactError(
            f"`{name}` was not exported by slimformer and has no {CONFIG} beside it, so nothing tells what its outputs "
            f"mean; put {CONFIG} and the tokenizer of its model there, or export the model with `slimformer export`"
        )
    return models.load_config(file.parent)


def _count(file: Path) -> int:
    """Weights of a file that does not say how many it has."""
    check_extra(["onnx"], "counting the weights of an ONNX file")
    import onnx

    graph = onnx.load(file, load_external_data=False).graph
    return sum(math.prod(tensor.dims) for tensor in graph.initializer)
