"""Embeddings, by what lies nearest to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: Queries compared at once, so that the similarities of a large set never lie in memory together.
_CHUNK = 1024


def one_nearest_neighbour(
    database: ArrayLike, database_labels: ArrayLike, queries: ArrayLike, query_labels: ArrayLike
) -> float:
    """Share of queries whose nearest item in the database bears the same label.

    Args:
        database: Embeddings to search, [items, width].
        database_labels: Their labels, [items].
        queries: Embeddings to look up, [queries, width].
        query_labels: Their labels, [queries].

    Example:
        >>> one_nearest_neighbour([[1, 0], [0, 1]], ["a", "b"], [[2, 1]], ["a"])
        1.0
    """
    items, looked_up = _unit(database, database_labels), _unit(queries, query_labels)
    if items.shape[1] != looked_up.shape[1]:
        raise DataError(
            f"queries are {looked_up.shape[1]} wide, the database {items.shape[1]}; embed both with one model"
        )
    nearest = _nearest(items, looked_up, own=False)
    return float(np.mean(np.asarray(database_labels)[nearest] == np.asarray(query_labels)))


def leave_one_out(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Share of items whose nearest other item bears the same label."""
    items = _unit(embeddings, labels)
    if len(items) < 2:
        raise DataError("one item has no neighbour; give at least two")
    nearest = _nearest(items, items, own=True)
    return float(np.mean(np.asarray(labels)[nearest] == np.asarray(labels)))


def _nearest(items: NDArray[Any], queries: NDArray[Any], *, own: bool) -> NDArray[np.intp]:
    """Index of the nearest item for each query; with `own`, query i is item i and does not count."""
    found = []
    for begin in range(0, len(queries), _CHUNK):
        similarity = queries[begin : begin + _CHUNK] @ items.T  # [chunk, items]
        if own:
            rows = np.arange(len(similarity))
            similarity[rows, begin + rows] = -np.inf
        found.append(similarity.argmax(-1))
    return np.concatenate(found)


def _unit(vectors: ArrayLike, labels: ArrayLike) -> NDArray[Any]:
    array = np.asarray(vectors, dtype=np.float32)
    if array.ndim != 2 or len(array) == 0 or len(array) != len(np.asarray(labels)):
        raise DataError(
            f"embeddings of shape `{array.shape}` do not go with {len(np.asarray(labels))} labels; "
            "give one row of numbers for each label"
        )
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    unit: NDArray[Any] = array / np.maximum(norms, np.finfo(np.float32).tiny)
    return unit
