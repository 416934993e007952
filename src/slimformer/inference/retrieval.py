"""Adaptive retrieval: a corpus embedded once by the largest size, queries by any (MatFormer, arXiv 2310.07707, 4.2.2).

All sizes of an elastic encoder share one space of embeddings, so the index is made once and each query costs what its
size costs. Nearness is the cosine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slimformer.artifact.staging import staging
from slimformer.errors import ArtifactError, ConfigError, DataError, describe
from slimformer.files import as_path, open_file, read_limited
from slimformer.inference.door import OpenModel
from slimformer.inference.embedding import check_pipeline, embed, table_of
from slimformer.inference.evaluation import prepare_split
from slimformer.inference.nearest import SEARCHES
from slimformer.inference.routing import mean_length, relative_costs
from slimformer.inference.runners import SizedRunner
from slimformer.models.pooling import normalize
from slimformer.models.sentence import SentenceSettings
from slimformer.sizes import Elastic, is_elastic
from slimformer.tasks.metrics import one_nearest_neighbour

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.inference.pipeline import TaskPipeline
    from slimformer.inference.runners import Array, Runner
    from slimformer.tasks.options import TaskOptions

VECTORS, RECORD = "vectors.safetensors", "index.json"
MAX_BYTES = 1 << 28  # of a record, which names all items
Backend = Literal["numpy", "faiss"]


@dataclass(frozen=True)
class Hit:
    """An item that was found: its name, its cosine with the query, and its number in the index."""

    name: str
    score: float
    number: int


class IndexRecord(BaseModel):
    """What `index.json` says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    width: int = Field(ge=1)
    names: list[str] = Field(min_length=1)
    fingerprint: str | None = Field(default=None, description="content hash of the weights that made the vectors")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="sum of the file of vectors")


class Index:
    """Vectors of a corpus to search in; threads may share it.

    Args:
        vectors: [items, width]; scaled to length 1 here.
        names: What each item is called in answers.
        fingerprint: Content hash of the weights that made the vectors; queries of another model are refused.
        backend: `numpy` compares with every item; `faiss` follows a graph, which is faster for very many items and may
            miss a neighbour.

    Example:
        >>> encoder = open_pipeline("out/encoder", task="retrieval", keep_sizes=True)
        >>> index = Index.of(encoder, texts)
        >>> index.find(encoder.at("S"), ["a warm film"], k=3)[0][0].name
    """

    def __init__(
        self, vectors: Any, names: Sequence[str], fingerprint: str | None = None, backend: Backend = "numpy"
    ) -> None:
        array = table_of(vectors, "vectors")
        if array.ndim != 2 or not array.size or len(array) != len(names):
            raise DataError(
                f"vectors of shape `{array.shape}` do not go with {len(names)} names; give one row for each"
            )
        odd = [name for name in names if not isinstance(name, str)]
        if odd:
            raise DataError(f"an item is called `{describe(odd[0])}`; give a text")
        if backend not in SEARCHES:
            raise ConfigError(f"there is no index `{backend}`; known: {', '.join(SEARCHES)}")
        self.vectors = _unit(array)
        self.names = tuple(names)
        self.fingerprint = fingerprint
        self._search = SEARCHES[backend](self.vectors)

    @classmethod
    def of(
        cls,
        pipeline: TaskPipeline,
        requests: Sequence[Any],
        names: Sequence[str] | None = None,
        backend: Backend = "numpy",
    ) -> Index:
        """Embed a corpus and index it.

        Args:
            pipeline: Of a kind that embeds texts or images; at its largest size, if it has several.
            requests: The texts, or the images or their paths.
            names: What each is called in answers; by default the text or path itself.
            backend: How to search; see `Index`.
        """
        check_pipeline(pipeline)
        titles = [str(request) for request in requests] if names is None else names
        return cls(embed(pipeline, requests), titles, pipeline.fingerprint, backend)

    def __len__(self) -> int:
        return len(self.names)

    def search(self, queries: Any, k: int = 10) -> tuple[Array, Array]:
        """The nearest items of vectors: their numbers and cosines, [queries, k], nearest first.

        Queries with fewer dimensions, of a size with nested outputs, are compared with the first ones of the items.
        """
        array = table_of(queries, "queries")
        width = self.vectors.shape[1]
        if array.ndim != 2 or not 0 < array.shape[1] <= width:
            raise DataError(f"queries of shape `{array.shape}` do not go with vectors of {width}; embed with one model")
        if not isinstance(k, int | np.integer) or k < 1:
            raise ConfigError(f"`k` is `{describe(k)}`; ask for 1 or more")
        if array.shape[1] < width:
            return Index(self.vectors[:, : array.shape[1]], self.names).search(array, k)
        return self._search(_unit(array), min(k, len(self)))

    def find(self, pipeline: TaskPipeline, requests: Sequence[Any], k: int = 10) -> list[list[Hit]]:
        """The nearest items of requests, which a pipeline embeds at its size."""
        check_pipeline(pipeline)
        if None not in (self.fingerprint, pipeline.fingerprint) and self.fingerprint != pipeline.fingerprint:
            raise ArtifactError("the index was made with other weights than the queries; use the artifact it came from")
        numbers, scores = self.search(embed(pipeline, requests), k) if requests else ((), ())
        return [
            [Hit(self.names[number], float(score), int(number)) for number, score in zip(*row, strict=True)]
            for row in zip(numbers, scores, strict=True)
        ]

    def save(self, folder: str | Path) -> None:
        """Write the vectors as safetensors and the rest as JSON into a folder that does not exist yet."""
        from safetensors.numpy import save

        content = save({"vectors": self.vectors})
        record = IndexRecord(
            width=self.vectors.shape[1],
            names=list(self.names),
            fingerprint=self.fingerprint,
            sha256=hashlib.sha256(content).hexdigest(),
        )
        with staging(folder, needed=2 * len(content)) as stage:
            (stage / VECTORS).write_bytes(content)
            (stage / RECORD).write_text(record.model_dump_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, backend: Backend = "numpy") -> Index:
        """Read an index; one that was changed since is refused."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        place = as_path(folder)
        if not (place / RECORD).is_file():
            raise ArtifactError(f"no index at `{folder}`; give a folder that `Index.save` wrote")
        try:
            record = IndexRecord.model_validate_json(read_limited(place / RECORD, MAX_BYTES))
            with open_file(place / VECTORS) as file:  # no pipe or device, which never ends
                content = file.read()
            if hashlib.sha256(content).hexdigest() != record.sha256:
                raise ValueError(f"`{VECTORS}` is not what was saved")
            vectors = load(content)["vectors"]
            if vectors.dtype != np.float32:
                raise ValueError(f"its vectors are of type {vectors.dtype}, not float32")
            if vectors.shape != (len(record.names), record.width):
                raise ValueError(f"{len(record.names)} names of width {record.width} for vectors of {vectors.shape}")
        except KeyError as error:  # the name of the tensor, or of a type that NumPy does not have
            raise ArtifactError(f"`{folder}` is no index: it has no vectors in float32; make it again") from error
        except (OSError, ValidationError, SafetensorError, ValueError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise ArtifactError(f"`{folder}` is no index: {describe(str(reason))}; make it again") from error
        return cls(vectors, record.names, record.fingerprint, backend)


def measure_retrieval(
    name: str | Path,
    options: TaskOptions,
    database: str = "train",
    queries: str = "dev",
    *,
    k: int = 10,
    pooling: str | None = None,
    batch_size: int = 32,
    **loading: Any,
) -> dict[str, dict[str, float]]:
    """How well queries of each size find their like in a corpus that the largest size embedded.

    Args:
        name: An elastic artifact; of another model there is one size, `XL`.
        options: A task that embeds, `retrieval` or `image-retrieval`, and its data.
        database: The split that is searched.
        queries: The split that is looked up.
        k: Neighbours that recall is counted over.
        pooling: How outputs become one vector, such as `cls`; by default as recorded with the model, or their mean.
        batch_size: Items per forward; changes speed and memory only.
        loading: What else `open_runnable` takes.

    Returns:
        For each size: `one_nearest_neighbour`, the share of queries whose nearest item bears their label;
        `same_size`, the same with a database of that very size; `recall@k`, the share of the largest size's k nearest
        items that the size finds too; and `compute`, its FLOPs of the largest's.
    """
    asked = prepare_split(name, options, queries, keep_sizes=True, **loading)
    searched = prepare_split(name, options, database, opened=asked.opened)
    kind = asked.data.kind
    if not kind.embeds:
        raise ConfigError(f"task `{asked.data.preset.name}` gives no vectors; give `retrieval` or `image-retrieval`")
    kind = kind if pooling is None else kind.with_settings(sentence=SentenceSettings(pooling=(pooling,)))
    opened, runner = asked.opened, asked.opened.runner(kind)
    runners: dict[str, Runner] = {"XL": runner}
    costs = [1.0]
    if isinstance(opened, OpenModel) and is_elastic(opened.model):
        elastic = Elastic.of(opened.model)
        runners = {name: SizedRunner(runner, elastic, name) for name in elastic.names}
        costs = relative_costs(opened.model, mean_length(asked)).tolist()
    items = {size: searched.outputs(each, batch_size)["embeddings"] for size, each in runners.items()}
    vectors = {size: asked.outputs(each, batch_size)["embeddings"] for size, each in runners.items()}
    labels = [[example["label"] for example in each.data[each.split]] for each in (searched, asked)]
    *_, largest = runners
    # Sizes with nested outputs show the first dimensions alone.
    whole = {size: items[largest][:, : each.shape[1]] for size, each in vectors.items()}
    index = Index(items[largest], [str(number) for number in range(len(labels[0]))])
    nearest = index.search(vectors[largest], k)[0]
    return {
        size: {
            "one_nearest_neighbour": one_nearest_neighbour(whole[size], labels[0], vectors[size], labels[1]),
            "same_size": one_nearest_neighbour(items[size], labels[0], vectors[size], labels[1]),
            f"recall@{k}": recall(nearest, index.search(vectors[size], k)[0]),
            "compute": cost,
        }
        for size, cost in zip(runners, costs, strict=True)
    }


def recall(expected: Array, numbers: Array) -> float:
    """Share of the expected neighbours, [queries, k], that are among the neighbours found."""
    return float(np.mean([np.isin(one, other).mean() for one, other in zip(expected, numbers, strict=True)]))


def _unit(vectors: Array) -> Array:
    """Vectors scaled to length 1; those of that length stay as they are, so that an index is loaded as it was saved."""
    near = np.abs(np.linalg.norm(vectors, axis=1, keepdims=True) - 1) < 1e-6
    return np.ascontiguousarray(np.where(near, vectors, normalize(vectors)), dtype=np.float32)
