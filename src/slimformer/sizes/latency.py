"""What an allocation costs in milliseconds: each block timed at each size on this machine.

A machine's speed drifts, so sizes take turns within a round, and what counts is the ratio to the largest size of the
same round; the median over rounds leaves out the round in which something else ran.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.sizes.cost import Costs, example_inputs
from slimformer.sizes.elastic import Elastic, extract
from slimformer.sizes.size import Allocation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from slimformer.sizes.size import Size

#: Milliseconds of one forward: of each block, and of all the rest.
Times = tuple[float, ...]


def measure_latency(model: nn.Module, length: int = 128, rounds: int = 20, warm_up: int = 3) -> Costs:
    """Time one text of `length` tokens, or one image, at every size; with as many threads as torch has now.

    Args:
        model: An elastic model.
        length: Tokens of the text.
        rounds: Forwards of each size that count.
        warm_up: Forwards of each size before that.
    """
    elastic = Elastic.of(model)
    blocks = len(elastic.blocks)
    # Models of their own, as they will be served: a slice costs a little more than what is extracted.
    clocks = {size: _Clock(extract(model, Allocation((size,) * blocks)), length) for size in elastic.sizes}
    for clock in clocks.values():
        for _ in range(warm_up):
            clock()
    return in_milliseconds(elastic.sizes, [{size: clock() for size, clock in clocks.items()} for _ in range(rounds)])


def in_milliseconds(sizes: Sequence[Size], rounds: Sequence[dict[Size, Times]]) -> Costs:
    """The cost of each block at each size, from times of several rounds; a larger size is never cheaper.

    Args:
        sizes: All sizes, smallest first.
        rounds: What each size took in each round: every block, then the rest.
    """
    largest = sizes[-1]
    whole = [statistics.median(times) for times in zip(*(each[largest] for each in rounds), strict=True)]
    table: list[dict[Size, float]] = []
    for index, milliseconds in enumerate(whole[:-1]):
        costs: dict[Size, float] = {}
        for size in sizes:
            ratio = statistics.median(each[size][index] / each[largest][index] for each in rounds)
            costs[size] = max([ratio * milliseconds, *costs.values()])
        table.append(costs)
    return Costs("milliseconds", whole[-1], tuple(table))


class _Clock:
    """Times the blocks of one model and the rest of it."""

    def __init__(self, model: nn.Module, length: int) -> None:
        self.model = model.eval()
        self.inputs = example_inputs(Anatomy.of(model), length)
        self.blocks = [block.module for block in Anatomy.of(model).blocks]
        on_gpu = next(model.parameters()).is_cuda
        self.finish: Callable[[], Any] = torch.cuda.synchronize if on_gpu else lambda: None
        self.marks: list[float] = []
        for block in self.blocks:
            block.register_forward_pre_hook(self._mark)
            block.register_forward_hook(self._mark)

    @torch.inference_mode()
    def __call__(self) -> Times:
        self.marks = []
        start = self._now()
        self.model(**self.inputs)
        whole = self._now() - start
        inside = [end - begin for begin, end in zip(self.marks[::2], self.marks[1::2], strict=True)]
        return (*inside, whole - sum(inside))

    def _mark(self, *_: Any) -> None:
        self.marks.append(self._now())

    def _now(self) -> float:
        self.finish()
        return time.perf_counter() * 1e3
