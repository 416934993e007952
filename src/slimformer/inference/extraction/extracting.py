"""Extraction: one size, or the largest mixture of sizes within a budget, as an artifact or under a name of its own.

Any choice of a size per block is a model (Mix'n'Match, MatFormer, arXiv 2310.07707, section 3.3); nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from slimformer import sizes
from slimformer.artifact import Manifest, Step, load, republish, round_weights, save
from slimformer.artifact.provenance import count, size, stored_tensors
from slimformer.artifact.staging import check_target
from slimformer.artifact.storage.precision import bytes_as
from slimformer.artifact.storage.quantizer import adopt
from slimformer.errors import ArtifactError
from slimformer.files import as_path
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.inference.extraction.choosing import Choice, look_up_elastic
from slimformer.models import located
from slimformer.models.widths import needs_widths
from slimformer.sizes import Costs, Elastic
from slimformer.sizes.table import PUBLISHED, PublishedRecord, read_published, write_published

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact import Loaded
    from slimformer.inference.source import Source
    from slimformer.models.settings import Store
    from slimformer.sizes import Allocation
    from slimformer.tasks.options import TaskOptions


@dataclass(frozen=True)
class Extraction:
    """What was extracted.

    Args:
        allocation: The size of each block, as the command line takes it.
        bytes: Bytes of its weights.
        flops: For one text of `length` tokens, or one image.
        length: Tokens of that text or image.
        manifest: What the artifact says of itself.
    """

    allocation: str
    bytes: int
    flops: int
    length: int
    manifest: Manifest

    def summary(self) -> dict[str, Any]:
        """The same as JSON types."""
        return {
            "allocation": self.allocation,
            "architecture": self.manifest.model.architecture,
            "storage": self.manifest.model.storage,
            "parameters": self.manifest.model.parameters,
            "bytes": self.bytes,
            "flops": self.flops,
            "length": self.length,
        }


def extract(
    artifact: str | Path,
    out: str | Path,
    choice: Choice | None = None,
    *,
    check: bool = True,
    overwrite: bool = False,
    command: str | None = None,
    store: Store | None = None,
    **settings: Any,
) -> Extraction:
    """Write one size of an elastic artifact, or the largest mixture within a budget, as an artifact of its own.

    Where all blocks have one width it is a plain checkpoint; otherwise it needs slimformer to be read.

    Args:
        artifact: The folder of the elastic artifact.
        out: Where the result goes.
        choice: Which size.
        check: Whether the artifact must answer as recorded at saving; its sums are compared in any case.
        overwrite: Replace an artifact that is there.
        command: The command line, for the record.
        store: What weights are stored as: `float32`, `half` or `bfloat16`; by default as they are in memory.
        settings: In place of `choice`, its fields: `allocation`, or one of `max_params`, `max_bytes`, `max_flops` and
            `max_latency`, with `length`, `order` and `calibration`.

    Example:
        >>> extract("sentiment-elastic", "sentiment-small", max_params=15_000_000)
    """
    choice = choice or Choice(**settings)
    source = look_up_elastic(artifact)
    if store is not None and getattr(source.config, "quantization_config", None) is not None:
        raise ArtifactError(
            f"`--store` is `{store}`, and the weights of `{artifact}` are packed, in fewer bits than that; leave it out"
        )
    if as_path(out).resolve() == as_path(artifact).resolve():
        raise ArtifactError(f"`--out` is `{out}`, the elastic model itself, which would be lost; give another folder")
    check_target(as_path(out), overwrite)
    length = choice.tokens(source)
    loaded = load(source.name, check=check)
    blocks = _counted(choice, loaded, store).of(source, loaded)
    model = cast("PreTrainedModel", sizes.extract(loaded.model, blocks))
    rounded = round_weights(model, store)
    manifest = save(
        out,
        model,
        step=Step(method="extract", config=choice.record(blocks) | ({} if store is None else {"store": store})),
        processor=loaded.processor,
        base=source.name,
        base_manifest=loaded.manifest,
        metrics=_metrics_of(loaded, blocks),
        task=loaded.manifest.task,
        storage=_storage(model),
        overwrite=overwrite,
        command=command,
        rounded=rounded,
    )
    costs = Costs.of(loaded.model, "flops", length)
    weights = bytes_as(stored_tensors(model), store)
    return Extraction(str(blocks), weights, int(costs.total(blocks)), costs.length, manifest)


def publish(
    artifact: str | Path,
    name: str,
    choice: Choice | None = None,
    *,
    evaluation: TaskOptions | None = None,
    check: bool = True,
    **settings: Any,
) -> PublishedRecord:
    """Give an allocation of an elastic artifact a name, by which every command then knows it as a size.

    What it costs, and how good it is if it is measured, is kept beside the artifact. Weights stay as they are.

    Args:
        artifact: The folder of the elastic artifact, which gets one more line in its table of published sizes.
        name: The name; one that was published before gets the new allocation.
        choice: Which allocation.
        evaluation: Data to measure it on, as `evaluate` does; none to leave it unmeasured.
        check: Whether the artifact must answer as recorded at saving; its sums are compared in any case.
        settings: In place of `choice`, its fields.

    Example:
        >>> publish("sentiment-elastic", "phone", max_params=15_000_000)
    """
    choice = choice or Choice(**settings)
    source = look_up_elastic(artifact)
    length = choice.tokens(source)
    loaded = load(source.name, check=check)
    blocks = choice.of(source, loaded)
    record = PublishedRecord.make(name, blocks.by_block, Elastic.of(loaded.model).names)
    quality = {} if evaluation is None else _measure(source, blocks, evaluation)
    record = replace(record, cost=_cost(loaded, blocks, length), quality=quality)
    others = [each for each in read_published(located(source.name)) if each.name != name]
    files = {PUBLISHED: write_published([*others, record])}
    republish(source.name, source.name, {}, files=files, overwrite=True)
    return record


def _counted(choice: Choice, loaded: Loaded, store: Store | None) -> Choice:
    """A choice whose limit on bytes is one on those in memory, which are counted."""
    if choice.max_bytes is None or choice.limit is None or store is None:
        return choice
    in_memory = stored_tensors(loaded.model)
    return replace(choice, max_bytes=int(choice.limit[1]) * size(in_memory) // bytes_as(in_memory, store))


def _cost(loaded: Loaded, blocks: Allocation, length: int) -> dict[str, float]:
    model = sizes.extract(loaded.model, blocks)
    flops = Costs.of(loaded.model, "flops", length)
    return {
        "parameters": count(model),
        "bytes": size(stored_tensors(model)),
        "flops": int(flops.total(blocks)),
        "length": flops.length,
    }


def _measure(source: Source, blocks: Allocation, options: TaskOptions) -> dict[str, float]:
    metrics: dict[str, float] = evaluate_on_task(source.name, options, size=blocks.by_block)["metrics"]
    return metrics


def _storage(model: PreTrainedModel) -> str:
    """How an extracted model is stored: packed where the elastic one is."""
    if getattr(model, "is_quantized", False):
        adopt(model)
        return "packed"
    return "per-block" if needs_widths(model) else "plain"


def _metrics_of(loaded: Loaded, blocks: Allocation) -> dict[str, dict[str, float]]:
    """What was measured of that very size in training; mixtures were not measured."""
    elastic = Elastic.of(loaded.model)
    end = next((f"@{size.name}" for size in elastic.sizes if elastic.allocation(size) == blocks), "@")
    measured = {
        data: {metric.removesuffix(end): value for metric, value in values.items() if metric.endswith(end)}
        for data, values in loaded.manifest.metrics.items()
    }
    return {data: values for data, values in measured.items() if values}
