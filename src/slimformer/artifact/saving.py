"""Saving an artifact: a plain Transformers checkpoint with its provenance, sums, probe and card."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from slimformer.artifact.card import write_card
from slimformer.artifact.guard import drop_code, read_config
from slimformer.artifact.layout import CARD, CONFIG, DATA_SUFFIXES, MANIFEST, PROBE
from slimformer.artifact.loading import load_model, load_processor
from slimformer.artifact.manifest import Base, Manifest, ModelRecord, Step, TaskRecord
from slimformer.artifact.probe import Probe, ask, batch_for, difference, given_batch
from slimformer.artifact.provenance import chain
from slimformer.artifact.staging import staging
from slimformer.artifact.sums import sum_file, sum_files
from slimformer.artifact.weights import count, fingerprint, size, stored_tensors
from slimformer.checkpoint import quiet
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn
    from transformers import PreTrainedModel

#: Room for everything beside the weights when the free space is checked.
MARGIN = 1024 * 1024
#: How far the reloaded model may be from the one in memory, by the bytes of a weight: a gross check that
#: the files hold the model, with room for another device, kernel or rounding.
MEMORY_TOLERANCE = {1: 0.5, 2: 0.2, 4: 1e-2, 8: 1e-3}


def save(
    folder: str | Path,
    model: nn.Module,
    *,
    step: Step,
    processor: Any = None,
    base: Base | str | Path | None = None,
    base_manifest: Manifest | None = None,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    task: TaskRecord | Mapping[str, Any] | None = None,
    probe: Mapping[str, Tensor] | None = None,
    overwrite: bool = False,
    command: str | Sequence[str] | None = None,
    write: Callable[[Path, PreTrainedModel, Any], None] | None = None,
) -> Manifest:
    """Write `model` as an artifact, whole or not at all, and return its manifest.

    Before the folder gets its name, the model is loaded back from it and must answer as the one in memory.

    Args:
        folder: where the artifact goes; must not exist, be empty, or be an artifact with `overwrite`.
        model: a model of Transformers without views on it; wrappers of DDP and `torch.compile` are taken off.
        step: the run that made the model; versions are filled in when it has none.
        processor: tokenizer or image processor, saved along.
        base: what the run started from: an alias, a folder, a Hub name, or a `Base` described before.
        base_manifest: manifest of the base when it is an artifact; read from `base` when that is its folder.
        metrics: numbers as measured, by data set and metric.
        task: what the model was made for: `name`, `kind`, and optionally `labels` and `settings`.
        probe: a small batch for models that take other inputs than token ids or pixels.
        overwrite: replace the artifact that is there.
        command: the command line that ran.
        write: puts model and processor into the folder in another layout than a plain checkpoint.

    Example:
        >>> save("out/sst2", model, processor=tokenizer, base="minilm", step=Step(method="finetune", seed=0))
    """
    transformer = _check_model(model)
    steps = chain(step, base, base_manifest, command)
    described = _describe(steps, metrics, task)
    # Asked before anything is written: a model that has diverged is not saved.
    batch = batch_for(transformer) if probe is None else given_batch(probe)
    in_memory = ask(transformer, batch)
    needed = size(stored_tensors(transformer))

    with staging(folder, needed=needed + MARGIN, overwrite=overwrite) as stage:
        (write or write_checkpoint)(stage, transformer, processor)
        _check_kinds(stage, processor)
        drop_code(stage)
        _open_to_readers(stage)
        recorded = _read_back(stage, transformer, Probe(inputs=batch, outputs=in_memory))
        (stage / PROBE).write_bytes(recorded.to_bytes())
        record = ModelRecord(
            architecture=type(transformer).__name__,
            parameters=count(transformer),
            dtype=str(read_config(stage / CONFIG).get("dtype")),
            fingerprint=fingerprint(stage),
            packed=_layouts(transformer),
        )
        return _write_manifest(stage, {**described, "model": record})


def _check_model(model: nn.Module) -> PreTrainedModel:
    import transformers
    from torch.nn.utils import parametrize

    from slimformer.anatomy import unwrap

    model = unwrap(model)
    name = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel) or getattr(transformers, name, None) is not type(model):
        raise ArtifactError(
            f"`{name}` is no model of transformers, so nobody could load it; give a `transformers` model, "
            "with adapters merged"
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ArtifactError(f"`{name}` carries an adapter, which would be saved alone; merge it first")
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            raise ArtifactError(f"`{path}` of `{name}` still has a view on it; bake the views before saving")
    return model


def _layouts(model: PreTrainedModel) -> list[str] | None:
    from slimformer.artifact.storage.packed import packed_weights

    return sorted({weight.layout.name for weight in packed_weights(model).values()}) or None


def _describe(
    steps: list[Step],
    metrics: Mapping[str, Mapping[str, float]] | None,
    task: TaskRecord | Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Check what the caller tells before any work is done."""
    described = {
        "steps": steps,
        "base": steps[-1].base,
        "metrics": {data: dict(values) for data, values in (metrics or {}).items()},
        "task": dict(task) if task is not None and not isinstance(task, TaskRecord) else task,
    }
    stand_in = ModelRecord(architecture="-", parameters=0, dtype="-", fingerprint="0" * 64)
    try:
        Manifest.model_validate({**described, "model": stand_in, "files": {}}).to_bytes()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(
            f"`{where}` cannot be saved: {first['msg'].lower()}, seen {first['input']!r}; correct it and save again"
        ) from error
    return described


def write_checkpoint(stage: Path, model: PreTrainedModel, processor: Any) -> None:
    """Write a plain checkpoint."""
    # The weights go into one file whatever their size.
    _save_part(stage, model, max_shard_size="1000TB")
    if processor is not None:
        save_processor(stage, processor)


def save_processor(folder: Path, processor: Any) -> None:
    """Write a tokenizer or image processor, without what its last call left in it."""
    _save_part(folder, _untouched(processor))


def _save_part(folder: Path, part: Any, **settings: str) -> None:
    try:
        with quiet():
            part.save_pretrained(folder, **settings)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ArtifactError(
            f"`{type(part).__name__}` cannot be saved: {reason}; nothing was written, mend it and save again"
        ) from error


def _check_kinds(stage: Path, processor: Any) -> None:
    for path in sorted(stage.rglob("*")):
        if path.is_file() and path.suffix not in DATA_SUFFIXES:
            raise ArtifactError(
                f"`{type(processor).__name__}` writes `{path.name}`, which is neither JSON nor text; "
                "nothing was written, give the fast version of the tokenizer"
            )


def _untouched(processor: Any) -> Any:
    """A copy of a processor without what its last call and the environment left in it."""
    plain = copy.deepcopy(processor)
    backend = getattr(plain, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    for kept in (getattr(plain, "init_kwargs", None), getattr(plain, "__dict__", None)):
        if isinstance(kept, dict):
            kept.pop("local_files_only", None)
    return plain


def _open_to_readers(stage: Path) -> None:
    """Give all files the permissions new files have here; safetensors makes its own for the owner alone."""
    umask = os.umask(0)
    os.umask(umask)
    for path in stage.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~umask)


def _read_back(stage: Path, model: PreTrainedModel, in_memory: Probe) -> Probe:
    """Load what was written, ask it the same, and return its answer, given in float32 on the CPU."""
    tolerance = MEMORY_TOLERANCE[model.dtype.itemsize]
    try:
        load_processor(stage)
        answer = ask(load_model(stage, dtype="float32"), in_memory.inputs)
        difference(answer, in_memory.outputs, relative=tolerance, absolute=tolerance / 10)
    except ArtifactError as error:
        reason = error.reason.replace(f" of `{stage}`", "")
        raise ArtifactError(
            f"the saved `{type(model).__name__}` is not the one in memory: {reason}; "
            "nothing was written, look for weights that `save_pretrained` leaves out"
        ) from error
    return Probe(inputs=in_memory.inputs, outputs=answer)


def _write_manifest(stage: Path, content: dict[str, Any]) -> Manifest:
    manifest = Manifest.model_validate({**content, "files": sum_files(stage)})
    (stage / CARD).write_text(write_card(manifest), encoding="utf-8")
    manifest = manifest.model_copy(update={"files": {**manifest.files, CARD: sum_file(stage / CARD)}})
    (stage / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest
