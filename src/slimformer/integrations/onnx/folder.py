"""What lies beside an exported file in its folder, so that it can be asked: config, tokenizer, record, probe, card."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy
from slimformer.artifact import ModelRecord, Step
from slimformer.artifact.layout import CONFIG, PROBE
from slimformer.artifact.probe import Probe, batch_for
from slimformer.artifact.saving import seal
from slimformer.artifact.storage.onnx import RECORD, OnnxRecord, OnnxStorage
from slimformer.artifact.storage.onnx.handler import DataRecord, DifferenceRecord, ExportStep, ask_session
from slimformer.artifact.storage.plain import save_processor
from slimformer.errors import ArtifactError
from slimformer.models.processors.identity import processor_sum
from slimformer.runtime.onnx import OnnxSession

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.integrations.onnx.describing import Exported
    from slimformer.integrations.onnx.exporting import Comparison, Difference


def put_processor(stage: Path, exported: Exported) -> str:
    """Write the tokenizer or image processor into a folder, and return its sum."""
    save_processor(stage, exported.processor)
    written = processor_sum(stage)
    if written is None:
        raise ArtifactError(
            f"a `{type(exported.processor).__name__}` writes no tokenizer.json, which is what runs without "
            "Transformers; nothing was written, give the fast version of the tokenizer"
        )
    return written


def fill(
    draft: Path,
    exported: Exported,
    record: OnnxRecord,
    difference: Difference,
    comparison: Comparison | None,
    *,
    size: str | None,
    command: str | None,
) -> None:
    """Put everything else beside a file that is written and compared.

    Args:
        draft: The file, with the tokenizer beside it.
        exported: What it was made from.
        record: What it says of itself.
        difference: How far it is from its source.
        comparison: The same on real examples.
        size: Which size of an elastic model it is.
        command: The command line that ran.
    """
    stage = draft.parent
    record.config(stage).to_json_file(stage / CONFIG)
    (stage / RECORD).write_text(f"{record.to_text(indent=2)}\n", encoding="utf-8")
    sentence = exported.sentence()
    if sentence is not None and record.sentence is not None:
        sentence.write(stage, Anatomy.of(exported.model).hidden)
    inputs = batch_for(exported.model)
    (stage / PROBE).write_bytes(Probe(inputs=inputs, outputs=ask_session(OnnxSession(draft), inputs)).to_bytes())
    model = ModelRecord(
        architecture=record.architecture,
        parameters=record.parameters,
        dtype="float32",
        fingerprint=OnnxStorage().fingerprint(stage),
        storage=OnnxStorage.name,
    )
    real, metrics = None, {}
    if comparison is not None:
        known = {name: value for name, value in asdict(comparison).items() if name in DataRecord.model_fields}
        real = DataRecord.model_validate(known)
        name = f"{comparison.task}/{comparison.split}"
        metrics = {name: comparison.metrics, f"{name}, source": comparison.source_metrics}
    apart = DifferenceRecord(**asdict(difference))
    config = ExportStep(numbers=record.numbers, size=size, difference=apart, data=real)
    seal(
        stage,
        model,
        Step(method="export", config=config.model_dump(exclude_defaults=True)),
        base=None if exported.source is None else exported.source.name,
        metrics=metrics,
        task=record.told_task(),
        command=command,
    )
