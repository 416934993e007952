"""What an ONNX file says of itself in its metadata, so that it can be asked without anything else but a tokenizer.

The record is JSON under one key of the file's `metadata_props`. Labels stand there once: the config in it names none
where there is a list of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field, JsonValue, ValidationError

from slimformer.artifact.manifest import Record, Sha256, TaskRecord
from slimformer.config import first_problem
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.files import JsonError, parse_json
from slimformer.models.names import make_config
from slimformer.models.processors.identity import IDENTITIES, processor_sum
from slimformer.models.sentence import SentenceSettings

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

#: The file of a folder that holds the model, and the one that repeats its record for people.
MODEL, RECORD = "model.onnx", "onnx.json"
#: Key of the metadata.
KEY = "slimformer"
#: Version of the record written, and the newest one read.
FORMAT = 1
#: Settings of a config that tell of labels, or of how the weights of the source were stored and where.
_LABELS = ("id2label", "label2id", "num_labels")
_OF_SOURCE = ("quantization_config", "transformers_version", "_name_or_path", "transformers_weights")


class SentenceRecord(Record):
    """How hidden states become one vector; see `slimformer.models.sentence.SentenceSettings`."""

    pooling: list[str] = Field(min_length=1)
    normalize: bool = False
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    max_length: int | None = Field(default=None, ge=1)

    @classmethod
    def of(cls, sentence: SentenceSettings) -> SentenceRecord:
        """The record of some settings."""
        return cls.model_validate({**asdict(sentence), "pooling": list(sentence.pooling)})

    @classmethod
    def read(cls, content: object) -> SentenceRecord:
        """The record that a manifest holds."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ArtifactError(f"how vectors are pooled {first_problem(error)}; export the model again") from error

    def settings(self) -> SentenceSettings:
        """The settings that were recorded."""
        return SentenceSettings(**{**self.model_dump(), "pooling": tuple(self.pooling)})


class OnnxRecord(Record):
    """What an ONNX file says of itself."""

    format: int = Field(default=FORMAT, ge=1, le=FORMAT, description="version of this record")
    architecture: str = Field(min_length=1, description="class of `transformers` that was exported")
    kind: str | None = Field(default=None, description="kind of task, such as `classification`")
    labels: list[str] | None = Field(default=None, description="label names in the order of the outputs")
    columns: list[str] = Field(default_factory=list, description="what the task's own data call its texts")
    max_length: int | None = Field(default=None, ge=1, description="tokens a text is cut to")
    positions: int | None = Field(default=None, ge=1, description="tokens the model takes at most; null for any number")
    vocabulary_size: int | None = Field(default=None, ge=1, description="tokens the model knows")
    pad_token_id: int = Field(default=0, ge=0, description="token that fills up shorter texts")
    sentence: SentenceRecord | None = Field(default=None, description="how hidden states become one vector")
    prompt: str = Field(default="", description="what is put before each text that becomes a vector")
    numbers: str = Field(min_length=1, description="what the matrices are stored in")
    parameters: int = Field(ge=0, description="number of weights, tied ones counted once")
    processor_sha256: Sha256 | None = Field(
        default=None, description="sum of the tokenizer or image processor the model was exported with"
    )
    task: TaskRecord | None = Field(default=None, description="what an artifact was made for, without the labels")
    settings: dict[str, JsonValue] = Field(description="the model's config.json, without the labels")

    @classmethod
    def settings_of(cls, config: PretrainedConfig, architecture: str, labels: list[str] | None) -> dict[str, Any]:
        """What is recorded of a config."""
        settings: dict[str, Any] = parse_json(config.to_json_string())
        left_out = (*_OF_SOURCE, *(_LABELS if labels is not None else ()))
        kept = {name: value for name, value in settings.items() if name not in left_out}
        return {**kept, "architectures": [architecture], "dtype": "float32"}

    def config(self, name: str | Path) -> PretrainedConfig:
        """The model's config; `name` is what messages call the model."""
        labels: dict[str, Any] = {}
        if self.labels is not None:
            labels["id2label"] = {str(number): label for number, label in enumerate(self.labels)}
            labels["label2id"] = {label: number for number, label in enumerate(self.labels)}
        try:
            return make_config({**self.settings, **labels}, name)
        except CheckpointError as error:
            raise ArtifactError(str(error)) from error

    def made_for(self) -> TaskRecord | None:
        """What the artifact was made for, with the labels."""
        return None if self.task is None else self.task.model_copy(update={"labels": self.labels})

    def told_task(self) -> TaskRecord | None:
        """What the manifest and the card of a folder tell of the task, however the model came to it."""
        if self.kind is None:
            return None
        task = self.made_for() or TaskRecord(name=self.kind, kind=self.kind, labels=self.labels)
        pooled = {} if self.sentence is None else {"sentence": self.sentence.model_dump()}
        return task.model_copy(update={"settings": {**task.settings, **pooled}})

    def to_text(self, indent: int | None = None) -> str:
        """The record as JSON; what is left out is default."""
        content = {**self.model_dump(mode="json", exclude_defaults=True), "format": FORMAT}
        # Read by programs that know no defaults.
        content |= {"labels": self.labels, "max_length": self.max_length, "pad_token_id": self.pad_token_id}
        content["prompt"] = self.prompt
        return json.dumps(content, sort_keys=True, ensure_ascii=False, indent=indent)

    @classmethod
    def read(cls, metadata: dict[str, str], source: str | Path) -> OnnxRecord | None:
        """The record in the metadata of a file; None where slimformer did not write it."""
        text = metadata.get(KEY)
        if text is None:
            return None
        try:
            content = parse_json(text)
            version = content.get("format") if isinstance(content, dict) else None
            if isinstance(version, int) and version > FORMAT:
                raise ArtifactError(
                    f"`{source}` is of format {version}, and this slimformer reads up to format {FORMAT}; update "
                    "slimformer"
                )
            return cls.model_validate(content)
        except JsonError as error:
            raise ArtifactError(
                f"`{source}` says what it is in JSON that is broken: {error}; export it again"
            ) from error
        except ValidationError as error:
            raise ArtifactError(f"the record in `{source}` {first_problem(error)}; export it again") from error

    def check_processor(self, folder: Path, source: str | Path) -> None:
        """Refuse a folder with no tokenizer or image processor for a file, or with another than it was exported with.

        Args:
            folder: Where the file lies.
            source: What the user calls the file.
        """
        if self.processor_sha256 is None:
            return
        beside = processor_sum(folder)
        if beside is None:
            names = " or ".join(f"`{name}`" for name, _ in IDENTITIES[:2])
            raise ArtifactError(
                f"`{source}` has no tokenizer or image processor beside it, {names}; put the files of the model it was "
                f"exported from into `{folder}`, or export into a folder"
            )
        if beside != self.processor_sha256:
            raise ArtifactError(
                f"the tokenizer or image processor beside `{source}` is another than it was exported with: SHA-256 "
                f"{beside[:12]}… instead of {self.processor_sha256[:12]}…; put the files of the model it was exported "
                "from there"
            )


def data_beside(path: Path) -> Path:
    """Where the weights of a large ONNX model lie."""
    return path.with_name(f"{path.name}.data")
