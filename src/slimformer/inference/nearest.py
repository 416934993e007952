"""The nearest of many vectors of length 1: all of them compared, or a graph followed by faiss."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from slimformer.errors import ConfigError

if TYPE_CHECKING:
    from slimformer.inference.runners import Array

#: Queries that are compared with all items at a time.
CHUNK = 256
#: Neighbours of each item in a graph of faiss, and candidates that a search follows at least.
NEIGHBOURS, CANDIDATES = 32, 128
#: Queries, [queries, width] → numbers of the nearest items and their cosines, [queries, k], nearest first.
Search: TypeAlias = Callable[[Any, int], tuple[Any, Any]]


def compare_all(vectors: Array) -> Search:
    """Compares queries with every item."""

    def search(queries: Array, k: int) -> tuple[Array, Array]:
        numbers, scores = [], []
        for begin in range(0, len(queries), CHUNK):
            cosines = queries[begin : begin + CHUNK] @ vectors.T  # [chunk, items]
            best = np.argpartition(-cosines, k - 1, axis=1)[:, :k] if k < len(vectors) else np.argsort(-cosines, axis=1)
            order = np.lexsort((best, -np.take_along_axis(cosines, best, 1)), axis=1)  # of equal ones the first
            numbers.append(np.take_along_axis(best, order, 1))
            scores.append(np.take_along_axis(cosines, numbers[-1], 1))
        return np.concatenate(numbers), np.concatenate(scores)

    return search


def follow_graph(vectors: Array) -> Search:
    """Follows a graph of neighbours (HNSW, arXiv 1603.09320), which faiss builds."""
    try:
        faiss: Any = import_module("faiss")
    except ImportError:
        raise ConfigError("index `faiss` needs the package `faiss-cpu`; install `slimformer[retrieval]`") from None
    graph = faiss.IndexHNSWFlat(vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    graph.add(vectors)

    def search(queries: Array, k: int) -> tuple[Array, Array]:
        effort = faiss.SearchParametersHNSW(efSearch=max(CANDIDATES, 2 * k))
        scores, numbers = graph.search(queries, k, params=effort)
        return numbers, scores

    return search


#: Ways of searching: name → what makes one of vectors.
SEARCHES: dict[str, Callable[[Any], Search]] = {"numpy": compare_all, "faiss": follow_graph}
