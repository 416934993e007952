"""Which size of an elastic model answers a request: as large as a latency allows, or as large as confidence asks for.

A route is a small JSON file; `slimformer.inference.routing.measuring` makes it. What it becomes here is a runner as any
other: each row of a batch is routed by itself, so neither batch-mates nor threads change an answer.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from slimformer.artifact.staging import write_file
from slimformer.errors import ConfigError, SizeError, SlimformerError, UsageError, describe
from slimformer.files import as_path, read_limited
from slimformer.inference.runners import SizedRunner, join
from slimformer.sizes import MOST_SIZES, Elastic, is_elastic
from slimformer.tasks.kinds.answers import softmax

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.inference.door import OpenModel
    from slimformer.inference.runners import Array, Runner
    from slimformer.tasks.kinds.kind import Kind

#: A route takes a few hundred bytes.
MAX_BYTES = 1 << 20
#: The output that says which of a route's sizes answered each row, by its number.
ROUTED = "routed"

Confidence = Literal["margin", "probability"]


def confidences(logits: Any, by: Confidence) -> Array:
    """How sure a model is of each answer: its best probability, or by how much that is above the second.

    Args:
        logits: [rows, classes].
        by: Which of the two.
    """
    ordered = np.sort(softmax(np.asarray(logits, dtype=np.float64)), axis=-1)
    best: Array = ordered[:, -1]
    return best if by == "probability" else best - ordered[:, -2]


class _Route(BaseModel):
    """What both kinds of route have."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    fingerprint: str | None = Field(default=None, description="content hash of the model's weights it was made with")
    sizes: list[str] = Field(
        min_length=1, max_length=MOST_SIZES, description="sizes or allocations, smallest first, each once"
    )

    @field_validator("sizes")
    @classmethod
    def _each_once(cls, sizes: list[str]) -> list[str]:
        if len(set(sizes)) < len(sizes):
            raise ValueError("a size is named twice")
        return sizes

    def check_kind(self, kind: Kind) -> None:
        """Refuse a kind of task whose requests cannot be routed."""
        if kind.new_tokens:
            raise ConfigError(f"a route chooses a size once for each request, and {kind.name} generates; use `--size`")

    @abstractmethod
    def runner(self, runners: Sequence[Runner]) -> Runner:
        """What routes the rows of a batch to the runners of the sizes."""

    def open(self, opened: OpenModel, runner: Runner, kind: Kind) -> Runner:
        """What routes the rows of a batch over the sizes of one model.

        Args:
            opened: The elastic model, with its sizes.
            runner: What runs it, at whatever size is in use.
            kind: What it has to do.
        """
        self.check_kind(kind)
        manifest = opened.source.manifest
        if not is_elastic(opened.model):
            raise SizeError(
                f"`{opened.source.name}` has one size only, and a route chooses among several; leave it out"
            )
        if manifest is not None and self.fingerprint not in (None, manifest.model.fingerprint):
            raise SizeError(
                f"the route was made with other weights than those of `{opened.source.name}`; make it again with "
                "`slimformer route`"
            )
        elastic = Elastic.of(opened.model)
        return self.runner([SizedRunner(runner, elastic, size) for size in self.sizes])


class Cascade(_Route):
    """The smallest size answers, and where it is not sure enough, the next one does."""

    by: Literal["confidence"] = "confidence"
    confidence: Confidence = Field(default="margin", description="what is compared with the thresholds")
    thresholds: list[FiniteFloat] = Field(description="confidence from which each size but the last is believed")
    costs: list[Annotated[FiniteFloat, Field(gt=0)]] = Field(description="FLOPs of each size, of the largest's")

    @model_validator(mode="after")
    def _one_each(self) -> Cascade:
        if len(self.thresholds) != len(self.sizes) - 1 or len(self.costs) != len(self.sizes):
            raise ValueError("a cascade has a cost for each size and a threshold for each but the last")
        return self

    def check_kind(self, kind: Kind) -> None:
        """Refuse a kind whose answers have no confidence."""
        super().check_kind(kind)
        if not kind.chooses:
            raise ConfigError(
                f"a cascade asks how sure each answer is, and {kind.name} chooses no class; route by latency, or use "
                "`--size`"
            )

    def runner(self, runners: Sequence[Runner]) -> Runner:
        """Runs rows on until a size is sure of them."""
        return CascadeRunner(self, runners)

    def spent(self, routed: Any) -> Array:
        """What each row cost, of the largest size's FLOPs: sizes that were not sure are paid too."""
        costs: Array = np.cumsum(self.costs)[np.asarray(routed)]
        return costs


class LatencyRoute(_Route):
    """The largest size whose latency, measured at batch 1, is within a budget; the smallest where none is."""

    by: Literal["latency"] = "latency"
    budget_ms: float = Field(gt=0, description="milliseconds a request may take")
    lengths: list[Annotated[int, Field(ge=1)]] = Field(
        min_length=1, description="lengths in tokens at which was measured, rising"
    )
    latency_ms: list[list[Annotated[FiniteFloat, Field(gt=0)]]] = Field(
        description="for each size, milliseconds at each length"
    )

    @model_validator(mode="after")
    def _whole(self) -> LatencyRoute:
        if sorted(set(self.lengths)) != self.lengths:
            raise ValueError("lengths rise from the shortest")
        if len(self.latency_ms) != len(self.sizes) or any(len(row) != len(self.lengths) for row in self.latency_ms):
            raise ValueError("there is a latency for each size and length")
        return self

    def choose(self, length: int, budget_ms: float | None = None) -> int:
        """The number of the size for a request of so many tokens, timed at the next length that was measured."""
        place = min(bisect_left(self.lengths, length), len(self.lengths) - 1)
        budget = self.budget_ms if budget_ms is None else budget_ms
        fitting = [number for number, row in enumerate(self.latency_ms) if row[place] <= budget]
        return fitting[-1] if fitting else 0

    def runner(self, runners: Sequence[Runner]) -> Runner:
        """Runs each row at the size that its length allows."""
        return LatencyRunner(self, runners)


Route = Cascade | LatencyRoute
_ROUTE: TypeAdapter[Route] = TypeAdapter(Annotated[Route, Field(discriminator="by")])


class CascadeRunner:
    """Runs a batch at the smallest size, and again at the next those rows of which it is not sure.

    Args:
        route: Thresholds.
        runners: What runs each size.
    """

    def __init__(self, route: Cascade, runners: Sequence[Runner]) -> None:
        self.route = route
        self.runners = tuple(runners)

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Run one batch."""
        rows = np.arange(_rows(batch))
        parts: list[tuple[Array, dict[str, Array]]] = []
        for number, runner in enumerate(self.runners):
            outputs = runner(_select(batch, rows))
            sure = np.ones(len(rows), dtype=bool)
            if number < len(self.route.thresholds):
                sure = confidences(outputs["logits"], self.route.confidence) >= self.route.thresholds[number]
            parts.append((rows[sure], {**_select(outputs, sure), ROUTED: np.full(int(sure.sum()), number)}))
            rows = rows[~sure]
            if not len(rows):
                break
        return _joined(parts)


class LatencyRunner:
    """Runs every row of a batch at the size that its own length allows.

    Args:
        route: Latencies and their budget.
        runners: What runs each size.
    """

    def __init__(self, route: LatencyRoute, runners: Sequence[Runner]) -> None:
        self.route = route
        self.runners = tuple(runners)

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Run one batch."""
        chosen = np.array([self.route.choose(length) for length in self._lengths(batch)])
        parts = []
        for number in np.unique(chosen):
            rows = np.flatnonzero(chosen == number)
            outputs = self.runners[number](_select(batch, rows))
            parts.append((rows, {**outputs, ROUTED: np.full(len(rows), number)}))
        return _joined(parts)

    def _lengths(self, batch: dict[str, Array]) -> list[int]:
        """Tokens of every row; images are all of one length."""
        mask = batch.get("attention_mask")
        if mask is None:
            return [self.route.lengths[-1]] * _rows(batch)
        return [int(length) for length in np.asarray(mask).reshape(len(mask), -1).sum(-1)]


def read_route(path: str | Path) -> Route:
    """Read a route that `write_route` wrote."""
    try:
        return _ROUTE.validate_json(read_limited(as_path(path), MAX_BYTES))
    except FileNotFoundError:
        raise ConfigError(f"no route at `{path}`; make one with `slimformer route`") from None
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}; give a file of `slimformer route`") from error
    except (ValidationError, ValueError) as error:
        reason = str(error.errors()[0]["msg"] if isinstance(error, ValidationError) else error)
        if "discriminator" in reason:  # pydantic's word for the setting that tells kinds apart
            reason = "it does not say `by` what it chooses"
        raise ConfigError(f"`{path}` is no route: {describe(reason)}; make one with `slimformer route`") from error


def chosen_route(route: str | Path | None, size: str | None) -> Route | None:
    """The route that was asked for, read; None where none was."""
    if route is not None and size is not None:
        raise UsageError(f"`--route` is `{route}` and `--size` is `{size}`; a route chooses the size, give one of them")
    return None if route is None else read_route(route)


def write_route(route: Route, path: str | Path, overwrite: bool = False) -> Path:
    """Write a route as JSON, whole or not at all; only another route may have been there before."""
    target = as_path(path)
    check_place(target, overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, f"{route.model_dump_json(indent=2)}\n".encode())
    except OSError as error:
        raise ConfigError(f"`{target}` cannot be written: {error.strerror}; choose another place") from error
    return target


def check_place(target: Path, overwrite: bool = False) -> None:
    """Refuse a place that is taken, unless by a route that may be replaced."""
    if not target.exists():
        return
    if not overwrite:
        raise ConfigError(f"`{target}` is there already; choose another file, or give `--overwrite`")
    try:
        read_route(target)
    except SlimformerError as error:
        raise ConfigError(f"`{target}` is no route, so it is not replaced; choose another file") from error


def _rows(batch: dict[str, Array]) -> int:
    return len(next(iter(batch.values())))


def _select(arrays: Any, rows: Array) -> dict[str, Array]:
    return {name: value[rows] for name, value in arrays.items()}


def _joined(parts: Sequence[tuple[Array, dict[str, Array]]]) -> dict[str, Array]:
    """The outputs of parts of a batch, in the order of its rows."""
    parts = [part for part in parts if len(part[0])]
    back = np.argsort(np.concatenate([rows for rows, _ in parts]))
    return {name: join([outputs[name] for _, outputs in parts])[back] for name in parts[0][1]}
