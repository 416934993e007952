"""Saving an artifact: a plain Transformers checkpoint with its provenance, sums, probe and card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from slimformer.artifact import reading
from slimformer.artifact.card import write_card
from slimformer.artifact.checks import check_finite, drop_code, sum_file, sum_files
from slimformer.artifact.layout import CARD, CONFIG, DATA_SUFFIXES, MANIFEST, PROBE, READING
from slimformer.artifact.loading import load_model, load_processor
from slimformer.artifact.manifest import Base, Manifest, ModelRecord, Step, TaskRecord, read_manifest
from slimformer.artifact.opening.configs import read_config
from slimformer.artifact.opening.files import check_files
from slimformer.artifact.probe import Probe, ask, batch_for, difference, given_batch
from slimformer.artifact.provenance import chain, count, fingerprint, size, stored_tensors
from slimformer.artifact.staging import open_to_readers, staging
from slimformer.artifact.storage.precision import shorten
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.models.processors import check_vocabulary
from slimformer.models.widths import described_widths
from slimformer.registry import STORAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Rounded
    from slimformer.artifact.storage.handler import Storage
    from slimformer.models.sentence import SentenceSettings

#: Room for everything beside the weights when the free space is checked.
MARGIN = 1024 * 1024
#: What of a manifest stays as it is under another name.
KEPT = ("model", "base", "task", "metrics")
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
    storage: str | Storage | None = None,
    sentence: SentenceSettings | Literal["of base"] | None = "of base",
    rounded: Rounded | None = None,
) -> Manifest:
    """Write `model` as an artifact, whole or not at all, and return its manifest.

    Before the folder gets its name, the model is loaded back from it and must answer as the one in memory.

    Args:
        folder: where the artifact goes; must not exist, be empty, or be an artifact with `overwrite`.
        model: a model of Transformers without views on it, or an elastic one; wrappers of DDP and `torch.compile` are
            taken off.
        step: the run that made the model; versions are filled in when it has none.
        processor: tokenizer or image processor, saved along.
        base: what the run started from: an alias, a folder, a Hub name, or a `Base` described before.
        base_manifest: manifest of the base when it is an artifact; read from `base` when that is its folder.
        metrics: numbers as measured, by data set and metric.
        task: what the model was made for: `name`, `kind`, and optionally `labels` and `settings`.
        probe: a small batch for models that take other inputs than token ids or pixels.
        overwrite: replace the artifact that is there.
        command: the command line that ran.
        storage: how the model is stored: a name in `registry.STORAGE`, or a handler that knows what it writes; by
            default packed where the model is, else plain, with its sizes where it is elastic.
        sentence: how a sentence encoder pools; by default what is recorded with the base; None for no sentence encoder.
        rounded: what `round_weights` returned of this model, to store its weights in 16 bits; None for as they are.

    Example:
        >>> save("out/sst2", model, processor=tokenizer, base="minilm", step=Step(method="finetune", seed=0))
    """
    from slimformer.anatomy import Anatomy
    from slimformer.artifact.storage.elastic import with_sizes
    from slimformer.sizes import is_elastic

    if storage is None and is_elastic(model):
        model, storage = with_sizes(model)
    transformer = _check_model(model)
    check_vocabulary(processor, transformer.config, str(folder))
    handler = _handler(transformer, storage)
    sentence = _recorded_sentence(base) if sentence == "of base" else sentence
    steps = chain(step, base, base_manifest, command)
    described = _describe(steps, metrics, task)
    # Asked before anything is written: a model that has diverged is not saved.
    batch = batch_for(transformer) if probe is None else given_batch(probe)
    in_memory = ask(transformer, batch)
    check_finite(transformer.state_dict(), f"the `{type(transformer).__name__}`")
    needed = size(stored_tensors(transformer))

    with staging(folder, needed=needed + MARGIN, overwrite=overwrite) as stage:
        handler.write(stage, transformer, processor, base)
        if rounded is not None:
            shorten(handler.tensor_files(stage), rounded)
        if sentence is not None:
            sentence.write(stage, Anatomy.of(transformer).hidden)
        _check_kinds(stage, processor)
        drop_code(stage)
        open_to_readers(stage)
        recorded, read = _read_back(stage, handler, transformer, Probe(inputs=batch, outputs=in_memory), task)
        (stage / READING).write_text(f"{read.model_dump_json(exclude_defaults=True)}\n", encoding="utf-8")
        sums = {name: sum_file(stage / name).sha256 for name in (READING, *handler.bound)}
        bound = recorded.model_copy(update={"reading": sums.pop(READING), "bound": sums})
        (stage / PROBE).write_bytes(bound.to_bytes())
        record = ModelRecord(
            architecture=type(transformer).__name__,
            parameters=count(transformer),
            dtype=str(read_config(stage / CONFIG).get("dtype")),
            fingerprint=fingerprint(stage),
            storage=handler.name,
            rounded=rounded,
            **handler.describe(transformer),
        )
        return _write_manifest(stage, {**described, "model": record})


def republish(
    folder: str | Path,
    target: str | Path,
    config: Mapping[str, Any],
    *,
    files: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Write an artifact once more, under another name or in its own place, with more in it.

    Args:
        folder: The artifact.
        target: Where it goes; as for `save`.
        config: What the record of the last step's settings says besides, or instead.
        files: Files that say more of the model, by name, such as a table of published sizes.
        overwrite: Replace the artifact that is there.
    """
    source, manifest = Path(folder), read_manifest(folder)
    *earlier, last = manifest.steps
    steps = [*earlier, last.model_copy(update={"config": {**last.config, **config}})]
    needed = sum(file.bytes for file in manifest.files.values())
    with staging(target, needed=needed + MARGIN, overwrite=overwrite) as stage:
        shutil.copytree(source, stage, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        # Sums made anew would hide what was harmed since the artifact was written.
        check_files(stage, manifest.files)
        _add_files(stage, files or {})
        (stage / CARD).unlink()
        return _write_manifest(stage, {**{name: getattr(manifest, name) for name in KEPT}, "steps": steps})


def _add_files(stage: Path, files: Mapping[str, bytes]) -> None:
    """Write files, and their sums into the probe."""
    if not files:
        return
    for name, content in files.items():
        (stage / name).write_bytes(content)
    probe = Probe.from_bytes((stage / PROBE).read_bytes(), PROBE)
    bound = {**probe.bound, **{name: sum_file(stage / name).sha256 for name in files}}
    (stage / PROBE).write_bytes(probe.model_copy(update={"bound": bound}).to_bytes())


def seal(
    stage: Path,
    model: ModelRecord,
    step: Step,
    *,
    base: str | Path | None,
    metrics: Mapping[str, Mapping[str, float]],
    task: TaskRecord | None,
    command: str | None,
) -> Manifest:
    """Give a folder without a name, filled otherwise than by `save`, its card and its manifest; arguments as there."""
    described = _describe(chain(step, base, None, command), metrics, task)
    drop_code(stage)
    open_to_readers(stage)
    return _write_manifest(stage, {**described, "model": model})


def check_description(step: Step, task: TaskRecord | Mapping[str, Any] | None = None) -> None:
    """Refuse, before a model is trained, what no manifest could hold: labels, settings or paths that are no text."""
    _describe([step], None, task)


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


def _handler(model: PreTrainedModel, storage: str | Storage | None) -> Storage:
    if storage is None:
        own_widths = described_widths(model.config) is not None
        storage = "packed" if getattr(model, "is_quantized", False) else "per-block" if own_widths else "plain"
    handler: Storage = STORAGE.get(storage)() if isinstance(storage, str) else storage
    return handler


def _recorded_sentence(base: Base | str | Path | None) -> SentenceSettings | None:
    """A sentence encoder stays one through every method: how its base pools is written beside the result."""
    from slimformer.models.sentence import SentenceSettings

    if base is None or isinstance(base, Base):
        return None
    try:
        return SentenceSettings.of(base)
    except (CheckpointError, OSError):
        return None  # steps beyond pooling, such as a dense layer, are no part of the model that is saved


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


def _check_kinds(stage: Path, processor: Any) -> None:
    for path in sorted(stage.rglob("*")):
        if path.is_file() and path.suffix not in DATA_SUFFIXES:
            raise ArtifactError(
                f"`{type(processor).__name__}` writes `{path.name}`, which is neither JSON nor text; "
                "nothing was written, give the fast version of the tokenizer"
            )


def _read_back(
    stage: Path,
    storage: Storage,
    model: PreTrainedModel,
    in_memory: Probe,
    task: TaskRecord | Mapping[str, Any] | None,
) -> tuple[Probe, reading.Reading]:
    """Load what was written, ask it the same, and return its answer, given in float32 on the CPU, and how it reads."""
    tolerance = MEMORY_TOLERANCE[model.dtype.itemsize]
    try:
        processor = load_processor(stage, storage=storage)
        reloaded = load_model(stage, dtype="float32", storage=storage)
        probe = Probe.record(reloaded, in_memory.inputs)
        difference(probe.outputs, in_memory.outputs, relative=tolerance, absolute=tolerance / 10)
    except ArtifactError as error:
        reason = error.reason.replace(f" of `{stage}`", "")
        raise ArtifactError(
            f"the saved `{type(model).__name__}` is not the one in memory: {reason}; "
            "nothing was written, look for weights that `save_pretrained` leaves out"
        ) from error
    record = None if task is None else TaskRecord.model_validate(task if isinstance(task, TaskRecord) else dict(task))
    return probe, reading.read(stage, reloaded.config, processor, record)


def _write_manifest(stage: Path, content: dict[str, Any]) -> Manifest:
    manifest = Manifest.model_validate({**content, "files": sum_files(stage)})
    (stage / CARD).write_text(write_card(manifest), encoding="utf-8")
    manifest = manifest.model_copy(update={"files": {**manifest.files, CARD: sum_file(stage / CARD)}})
    (stage / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest
