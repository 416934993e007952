"""A folder with a model in ONNX: it runs in ONNX Runtime, and not in PyTorch."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pydantic import Field, FiniteFloat, ValidationError

from slimformer.artifact.layout import PROBE
from slimformer.artifact.manifest import Record
from slimformer.artifact.storage.handler import Storage, as_cell
from slimformer.artifact.storage.onnx.record import MODEL, OnnxRecord, SentenceRecord, data_beside
from slimformer.config import first_problem
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.artifact.manifest import Manifest
    from slimformer.artifact.probe import ProbeInput, ProbeOutput
    from slimformer.runtime.onnx import OnnxSession

#: How far answers may lie from those recorded, relative to the largest and absolute: in float arithmetic, and where
#: matrices of a few bits are multiplied by kernels that each machine has its own of.
TOLERANCES = {True: (1e-3, 1e-4), False: (0.2, 0.02)}
#: What the example of a card begins with, and how it asks the file.
_OPENING = (
    'session = onnxruntime.InferenceSession("model.onnx")',
    'about = json.loads(session.get_modelmeta().custom_metadata_map["slimformer"])',
)
_ENCODING = (
    'tokenizer = Tokenizer.from_file("tokenizer.json")',
    'tokenizer.enable_truncation(about["max_length"])',
    'tokenizer.enable_padding(pad_id=about["pad_token_id"])',
    "batch = tokenizer.encode_batch({asked})",
    'fields = {{"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}}',
    "names = [each.name for each in session.get_inputs()]",
    "feed = {{name: np.array([getattr(row, fields[name]) for row in batch]){axis} for name in names}}",
)
_PIXELS = (
    "shape = (1, *session.get_inputs()[0].shape[1:])",
    'feed = {"pixel_values": np.zeros(shape, np.float32)}  # scaled as preprocessor_config.json says',
)
_RUNNING = "outputs = dict(zip([each.name for each in session.get_outputs()], session.run(None, feed)))"


class DifferenceRecord(Record):
    """How far a file is from its source on random inputs, or on batches of the caller's."""

    examples: int = Field(ge=0)
    largest: FiniteFloat
    mean: FiniteFloat
    relative: FiniteFloat
    agreement: FiniteFloat | None = None


class DataRecord(Record):
    """How far a file is from its source on real examples."""

    task: str
    split: str
    examples: int = Field(ge=0)
    agreement: FiniteFloat | None = None
    largest: FiniteFloat


class ExportStep(Record):
    """What the manifest records of an export."""

    numbers: str
    size: str | None = None
    difference: DifferenceRecord
    data: DataRecord | None = None


class OnnxStorage(Storage):
    """An ONNX file, with the data of a large one beside it."""

    name = "onnx"
    weights: ClassVar[tuple[str, ...]] = (MODEL,)
    library = "onnx"
    no_base = (
        "is an ONNX model, which is asked and never trained; give the model it was exported from, or another checkpoint"
    )

    def tensor_files(self, folder: Path) -> list[Path]:
        """The file, and the one with its data where there is one."""
        return [path for path in (folder / MODEL, data_beside(folder / MODEL)) if path.is_file()]

    def fingerprint(self, folder: Path) -> str:
        """A sum over the files."""
        total = hashlib.sha256()
        for path in self.tensor_files(folder):
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()

    def write(self, *arguments: Any, **settings: Any) -> NoReturn:
        """Refuse: a model is traced and compared before it is written."""
        raise ArtifactError("an ONNX model is not saved but exported; run `slimformer export`, or call `to_onnx`")

    def read(self, folder: Path, *arguments: Any, **settings: Any) -> NoReturn:
        """Refuse: there is no model of PyTorch in the folder."""
        raise not_in_torch(folder)

    def check(self, folder: Path) -> tuple[tuple[str, ...], float]:
        """Open the file, compare the tokenizer beside it, and ask it what it was asked when it was exported."""
        from slimformer.runtime.onnx import OnnxSession

        session = OnnxSession(folder / MODEL)
        record = OnnxRecord.read(session.metadata, folder)
        if record is None:
            raise ArtifactError(f"`{folder / MODEL}` does not say what it is; export the model again")
        record.check_processor(folder, folder)
        return session.outputs, check_answers(folder, session, record)

    def card(self, manifest: Manifest) -> str:
        """With ONNX Runtime alone, and with slimformer."""
        return "\n\n".join(
            [
                "With onnxruntime, numpy and tokenizers alone, inside this folder:",
                f"```python\n{snippet(manifest)}\n```",
                "With slimformer, which checks every file first:",
                "```python\nfrom slimformer.inference.pipeline import open_pipeline\n\n"
                'pipeline = open_pipeline("path/to/this/folder")\n```',
                *_compared(manifest.steps[-1].config),
            ]
        )


def _compared(step: dict[str, Any]) -> list[str]:
    """How far the file is from its source, as the step of the export records it."""
    try:
        record = ExportStep.model_validate(step)
    except ValidationError as error:
        raise ArtifactError(f"the step `export` of the manifest {first_problem(error)}; export it again") from error
    random, real = record.difference, record.data
    lines = [
        f"On {random.examples:,} random examples its outputs are at most {random.largest:.3g} from those of its "
        f"source, {random.mean:.3g} on average."
    ]
    if real is not None:
        same = "" if real.agreement is None else f" the same answer in {100 * real.agreement:.1f} %, and"
        lines.append(
            f"On {real.examples:,} examples of {as_cell(f'{real.task}/{real.split}')} it gives{same} outputs at most "
            f"{real.largest:.3g} from those of its source; the metrics of both are below."
        )
    return lines


def not_in_torch(name: str | Path) -> ArtifactError:
    """The error for what needs a model of PyTorch and is given one of ONNX."""
    return ArtifactError(
        f"`{name}` is an ONNX model, which `predict`, `evaluate` and `bench` run in ONNX Runtime, and nothing else; "
        "give the model it was exported from"
    )


def snippet(manifest: Manifest) -> str:
    """A few lines that ask the model of a folder, with nothing imported but ONNX Runtime, NumPy and tokenizers."""
    from slimformer.tasks.kinds import is_kind, kind_of
    from slimformer.tasks.kinds.answers import Snippet

    task = manifest.task
    sentence = None if task is None else task.settings.get("sentence")
    settings = {} if sentence is None else {"sentence": SentenceRecord.read(sentence).settings()}
    kind = kind_of(task.kind, settings) if task is not None and is_kind(task.kind) else None
    images = "preprocessor_config.json" in manifest.files if kind is None else kind.modality == "images"
    lines = Snippet(("print(outputs)",)) if kind is None else kind.snippet
    imports = ["import json", "", "import numpy as np", "import onnxruntime"]
    imports += [] if images else ["from tokenizers import Tokenizer"]
    encoding = _PIXELS if images else tuple(line.format(asked=lines.asked, axis=lines.axis) for line in _ENCODING)
    return "\n".join([*imports, "", *_OPENING, *encoding, _RUNNING, *lines.answer])


def ask_session(session: OnnxSession, inputs: dict[str, ProbeInput]) -> dict[str, ProbeOutput]:
    """Run a probe's batch and sample every output."""
    import torch

    from slimformer.artifact.probe import sampled

    answers = session.run({name: recorded.tensor().numpy() for name, recorded in inputs.items()})
    return {name: sampled(name, torch.from_numpy(array)) for name, array in answers.items()}


def check_answers(folder: Path, session: OnnxSession, record: OnnxRecord) -> float:
    """Refuse a file that does not answer as it did when it was exported; return the largest difference."""
    from slimformer.artifact.probe import difference, read_probe

    probe = read_probe(folder)
    relative, absolute = TOLERANCES[record.numbers == "float"]
    try:
        return difference(probe.outputs, ask_session(session, probe.inputs), relative=relative, absolute=absolute)
    except ArtifactError as error:
        raise ArtifactError(
            f"`{folder}` does not give the outputs recorded in {PROBE} when it was exported: {error.reason}; the "
            "onnxruntime here computes something else, export the model again"
        ) from error
