"""`slimformer.json`: what an artifact is, how it came about and the sums of its files.

The file has one serialisation only, and it carries the SHA-256 of everything else in it. So a changed
byte is found wherever it is, white space included.

The format can grow: since format 2 a value that is its field's default is left out, so a field that is added later
with a default changes no file written before it. Format 1 wrote every field of its time and is read as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from slimformer.artifact.layout import MANIFEST, is_safe_name
from slimformer.artifact.opening.manifest import (
    FORMAT,
    canonical,
    changed,
    check_format,
    parse,
    read_bytes,
    sum_of,
    with_storage,
)
from slimformer.config import first_problem
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """Base of everything in the manifest: fixed once made, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Base(Record):
    """The checkpoint a run started from."""

    name: str = Field(min_length=1, description="alias, Hub name or name of the folder")
    fingerprint: Sha256 | None = Field(
        default=None, description="content hash of the base's weights; null when they were not at hand"
    )
    revision: str | None = Field(
        default=None, min_length=1, description="commit of a base on the Hub; absent for one that is not there"
    )
    license: str | None = Field(
        default=None, min_length=1, description="licence that its card or its config names; absent where neither does"
    )


class Step(Record):
    """One run of one method, a link of the chain that led to an artifact."""

    method: str = Field(min_length=1, description="the method that ran, such as `finetune` or `distill`")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="the method's whole config, as it was used")
    left_open: tuple[str, ...] = Field(
        default=(), description="settings of it that nobody gave and that task, model or machine decided"
    )
    seed: int | None = Field(default=None, description="seed of the run")
    versions: dict[str, str] = Field(default_factory=dict, description="versions of the libraries that ran")
    duration_s: FiniteFloat | None = Field(default=None, ge=0, description="wall time of the run in seconds")
    command: str | None = Field(default=None, description="the command line that ran")
    base: Base | None = Field(default=None, description="what this step started from; null for random weights")


class Rounded(Record):
    """How weights were rounded for the file, and what that changed."""

    dtype: Literal["float16", "bfloat16"] = Field(description="type of the weights in the file")
    moved: FiniteFloat = Field(ge=0, description="how far answers to the probe moved, as a share of the largest one")
    metrics: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="by how much each metric changed, where the model was measured again"
    )


class ModelRecord(Record):
    """The model that was saved."""

    architecture: str = Field(min_length=1, description="class of `transformers` that loads it")
    parameters: int = Field(ge=0, description="number of stored weights, tied ones counted once")
    dtype: str = Field(min_length=1, description="type the weights are loaded as")
    fingerprint: Sha256 = Field(description="content hash of the weights")
    storage: str = Field(default="plain", min_length=1, description="how the weights lie in the folder")
    packed: list[str] | None = Field(default=None, description="layouts of packed weights; absent where there are none")
    rounded: Rounded | None = Field(
        default=None, description="how weights were rounded for the file; absent where they are stored as loaded"
    )


class TaskRecord(Record):
    """The task the model was made for."""

    name: str = Field(min_length=1)
    kind: str = Field(min_length=1, description="such as `classification` or `tagging`")
    labels: list[str] | None = Field(default=None, description="label names in the order of the outputs")
    settings: dict[str, JsonValue] = Field(default_factory=dict, description="whatever else the task needs")


class FileSum(Record):
    """Size and SHA-256 of one file."""

    sha256: Sha256
    bytes: int = Field(ge=0)


class Manifest(Record):
    """The content of `slimformer.json`, without the sum over itself."""

    format: int = Field(default=FORMAT, ge=1, le=FORMAT, description="version of this format")
    model: ModelRecord
    base: Base | None = Field(default=None, description="what the last step started from")
    steps: list[Step] = Field(min_length=1, description="the chain of runs, oldest first")
    task: TaskRecord | None = None
    metrics: dict[str, dict[str, FiniteFloat]] = Field(
        default_factory=dict, description="metrics as measured, by data set and name"
    )
    files: dict[str, FileSum] = Field(description="every other file of the folder")

    @model_validator(mode="before")
    @classmethod
    def _storage_of_format_1(cls, content: Any) -> Any:
        """Format 1 left it to the files how weights are stored."""
        return with_storage(content)

    @field_validator("files")
    @classmethod
    def _names_stay_inside(cls, files: dict[str, FileSum]) -> dict[str, FileSum]:
        for name in files:
            if not is_safe_name(name):
                raise ValueError(f"`{name}` is not a file inside the folder")
        return files

    @model_validator(mode="after")
    def _base_is_of_last_step(self) -> Manifest:
        if self.base != self.steps[-1].base:
            raise ValueError("`base` is not the base of the last step")
        return self

    def to_bytes(self) -> bytes:
        """Serialise to the one form of the newest format that is valid on disk."""
        content = {**self.model_dump(mode="json", exclude_defaults=True), "format": FORMAT}
        return canonical({**content, "sha256": sum_of(content)})

    @classmethod
    def from_bytes(cls, data: bytes, source: str = MANIFEST) -> Manifest:
        """Parse and check; every defect is an `ArtifactError` that begins with `source`."""
        raw = parse(data, source)
        check_format(raw.get("format"), source)
        recorded = raw.pop("sha256", None)
        try:
            manifest = cls.model_validate(raw)
        except ValidationError as error:
            raise ArtifactError(f"`{source}` {first_problem(error)}; save the artifact again") from error
        except RecursionError as error:
            raise ArtifactError(f"`{source}` is nested too deeply; save the artifact again") from error
        # What was validated, not what was parsed: a value of another type is a change too.
        stored = _restricted(manifest.model_dump(mode="json"), raw)
        if recorded != sum_of(raw) or data != canonical({**stored, "sha256": recorded}):
            raise changed(source, recorded)
        return manifest


def read_manifest(folder: str | Path) -> Manifest:
    """Read and check `slimformer.json` of an artifact; the other files are not looked at."""
    path, data = read_bytes(folder)
    return Manifest.from_bytes(data, str(path))


def _restricted(content: Any, raw: Any) -> Any:
    """The part of a whole dump that a file spells out; what it leaves out is default."""
    if isinstance(content, dict) and isinstance(raw, dict):
        return {name: _restricted(value, raw[name]) for name, value in content.items() if name in raw}
    if isinstance(content, list) and isinstance(raw, list):
        return [_restricted(one, other) for one, other in zip(content, raw, strict=True)]
    return content
