"""Which allocation of an elastic artifact is meant: one by name, or the largest within a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.config import parse_bytes, parse_count
from slimformer.errors import SizeError, UsageError, describe
from slimformer.inference.door import look_up
from slimformer.inference.extraction.calibration import calibration_loss
from slimformer.sizes import ORDERS, Budget, Costs, Elastic, allocate, measure_latency, measure_sensitivity

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.artifact import Loaded
    from slimformer.inference.source import Source
    from slimformer.sizes import Allocation
    from slimformer.sizes.choice import Order
    from slimformer.sizes.cost import Measure
    from slimformer.sizes.naming import Sized
    from slimformer.tasks.options import TaskOptions

#: Limits as they are called in settings → what they limit.
LIMITS: dict[str, Measure] = {
    "max_params": "parameters",
    "max_bytes": "bytes",
    "max_flops": "flops",
    "max_latency": "milliseconds",
}
#: How a limit that may be a text such as `10MB` or `2.5M` is read.
SIZES = {"max_params": parse_count, "max_bytes": parse_bytes, "max_flops": parse_count}
#: Tokens of the text whose FLOPs are counted or whose time is taken.
LENGTH = 128


@dataclass(frozen=True)
class Choice:
    """An allocation, or one limit and how to choose within it.

    Args:
        allocation: A size by name or share, or one for each block, 0 for a block that is skipped.
        max_params: In place of it, the most weights that the file may hold, as a number or a text such as `2.5M`.
        max_bytes: Or the most bytes that its weights may take, such as `10MB` or `9.5MiB`.
        max_flops: Or the most FLOPs that one text of `length` tokens, or one image, may take.
        max_latency: Or the most milliseconds that it may take here, by the time of each block at each size.
        length: Tokens of that text; 128 by default, or as many as the model takes.
        order: Which blocks are larger within a budget, if not all can be alike.
        calibration: Data on which the loss of each block at each size is measured, to choose by instead of `order`.
    """

    allocation: Sized | None = None
    max_params: float | str | None = None
    max_bytes: float | str | None = None
    max_flops: float | str | None = None
    max_latency: float | None = None
    length: int | None = None
    order: Order = "increasing"
    calibration: TaskOptions | None = None

    def __post_init__(self) -> None:
        for name, parse in SIZES.items():
            try:
                object.__setattr__(self, name, parse(getattr(self, name)))
            except ValueError as error:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"`{flag}` is `{describe(getattr(self, name))}`; {error}") from None
        flags = {name: f"`--{name.replace('_', '-')}`" for name in ("allocation", *LIMITS)}
        named = [flag for name, flag in flags.items() if getattr(self, name) is not None]
        if len(named) != 1:
            seen = f"{' and '.join(named)} were given" if named else "nothing says which size"
            raise UsageError(f"{seen}; give one of {', '.join(flags.values())}")
        if self.order not in ORDERS:
            raise UsageError(f"`--order` is `{self.order}`; known: {', '.join(ORDERS)}")
        if self.limit is None and self.calibration is not None:
            raise UsageError("`--sensitivity` chooses within a budget, and `--allocation` says all; leave one out")
        if self.limit is not None and not 0 < self.limit[1] < float("inf"):
            raise UsageError(f"{named[0]} is `{self.limit[1]}`; give a number above 0")

    @property
    def limit(self) -> tuple[str, float] | None:
        """The limit by its name; None where an allocation is given."""
        return next(((name, value) for name in LIMITS if (value := getattr(self, name)) is not None), None)

    def of(self, source: Source, loaded: Loaded) -> Allocation:
        """The allocation of an artifact that is meant."""
        elastic = Elastic.of(loaded.model)
        if self.limit is None:
            assert self.allocation is not None
            return elastic.allocation(self.allocation)
        name, limit = self.limit
        length, what = self.tokens(source), LIMITS[name]
        measured = what == "milliseconds"
        costs = measure_latency(loaded.model, length) if measured else Costs.of(loaded.model, what, length)
        if self.calibration is None:
            return allocate(elastic, Budget(costs, limit), self.order)
        loss = calibration_loss(source, loaded.model, loaded.processor, self.calibration)
        return allocate(elastic, Budget(costs, limit), sensitivity=measure_sensitivity(elastic, loss))

    def tokens(self, source: Source) -> int:
        """Tokens of the text that is counted."""
        positions = models.positions(source.config)
        if self.length is not None and positions is not None and self.length > positions:
            raise UsageError(
                f"`--length` is `{self.length}`, but the model has {positions} positions; give {positions} or less"
            )
        return self.length or min(LENGTH, positions or LENGTH)

    def record(self, chosen: Allocation) -> dict[str, Any]:
        """What a manifest says of it."""
        if self.limit is None:
            return {"allocation": str(chosen)}
        how = {"sensitivity": True} if self.calibration is not None else {"order": self.order}
        return {"allocation": str(chosen), **dict([self.limit]), **how}


def look_up_elastic(artifact: str | Path) -> Source:
    """What an artifact is; one that is not elastic is refused."""
    source = look_up(artifact)
    if not source.is_nested:
        raise SizeError(f"`{artifact}` has one size only, there is none to choose; give what `slimformer elastic` made")
    return source
