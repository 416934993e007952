"""Blocks one after the other: what each matrix is fed once everything before it is quantized already.

The texts of a batch are all of one length, so that there is no padding to be told from words, and a batch computes what
each of its texts would alone.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from slimformer import models
from slimformer.anatomy import Anatomy, Matrix
from slimformer.errors import CheckpointError
from slimformer.taps.record import hidden_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    Batch = dict[str, Tensor]
    #: Quantizes matrices that read the same inputs, whose mean outer product is [in, in].
    QuantizeMatrices = Callable[[Sequence[Matrix], Tensor], None]

#: How far a block that is run alone may be from what it computed in the model, as a share of the largest value.
TOLERANCE = 1e-3


class Call(NamedTuple):
    """What a block was called with beside hidden states: masks, positions."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def repeat(self, block: nn.Module, hidden: Tensor) -> Tensor:
        """Call a block in the same way with other hidden states, and return its own."""
        kwargs = self.kwargs if self.args else {**self.kwargs, "hidden_states": hidden}
        output = block(*((hidden, *self.args[1:]) if self.args else ()), **kwargs)
        states: Tensor = output[0] if isinstance(output, tuple) else output
        return states

    def without_states(self) -> Call:
        """The same, not holding on to the hidden states."""
        return (
            Call((None, *self.args[1:]), self.kwargs) if self.args else Call((), {**self.kwargs, "hidden_states": None})
        )


def batches_of(examples: Iterable[Mapping[str, Any]], size: int) -> list[Batch]:
    """Examples of text or images in batches without padding, the shortest first.

    Args:
        examples: `{"input_ids": …}` or `{"pixel_values": …}`, nothing padded.
        size: Most examples of a batch.
    """
    alike: dict[tuple[int, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for example in examples:
        alike[torch.as_tensor(example.get("input_ids", example.get("pixel_values"))).shape].append(example)
    batches = []
    for shape in sorted(alike):
        for start in range(0, len(alike[shape]), size):
            rows = alike[shape][start : start + size]
            batches.append({name: torch.stack([_tensor(row[name]) for row in rows]) for name in rows[0]})
    return batches


def placed(batch: Batch, model: nn.Module) -> Batch:
    """A batch where the model is."""
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _tensor(value: Any) -> Tensor:
    tensor = torch.as_tensor(value)
    return tensor if tensor.is_floating_point() else tensor.long()


class Walk:
    """A model's blocks in their order, each fed what the quantized ones before it give.

    Args:
        model: The model in eval mode, its activations rounded already where they are to be.
        batches: What it is calibrated on.
        name: What the model is called in messages.

    Raises:
        CheckpointError: Where blocks cannot be run one by one.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Batch], name: str) -> None:
        self.anatomy = Anatomy.of(model)
        self.batches = batches
        modules = [block.module for block in self.anatomy.blocks]
        if len({id(module) for module in modules}) < len(modules):
            raise CheckpointError(f"`{name}` uses one block several times, and it cannot be quantized once for each")
        self._calls: list[list[Call]] = []
        self._hidden: list[Tensor] = []
        for batch in batches:
            calls, states = self._record(batch)
            if not self._calls:
                self._check(calls, states, name)
            self._calls.append(calls)
            self._hidden.append(states[0])

    @torch.no_grad()
    def quantize(self, quantize: QuantizeMatrices) -> None:
        """Quantize the matrices of all blocks, and that of the pooler.

        Within a block too each matrix is quantized before the inputs of those behind it are recorded.

        Args:
            quantize: Called with matrices that read the same inputs, and the mean outer product of these.
        """
        for number, block in enumerate(self.anatomy.blocks):
            module = block.module
            for matrices in block.readers:
                with gram_of(matrices[0].module) as gram:
                    for calls, hidden in zip(self._calls, self._hidden, strict=True):
                        calls[number].repeat(module, hidden)
                quantize(matrices, gram.mean)
            self._hidden = [
                calls[number].repeat(module, hidden) for calls, hidden in zip(self._calls, self._hidden, strict=True)
            ]
        pooler = self.anatomy.pooler
        if pooler is not None:
            with gram_of(pooler.module) as gram:
                for batch in self.batches:
                    self.anatomy.model(**placed(batch, self.anatomy.model), **self._plainly)
            quantize([pooler], gram.mean)

    @property
    def _plainly(self) -> dict[str, Any]:
        """Decoders would keep keys and values, which a block that is run twice would see twice."""
        return {"use_cache": False} if models.is_causal(self.anatomy.config) else {}

    @torch.no_grad()
    def _record(self, batch: Batch) -> tuple[list[Call], list[Tensor]]:
        """What each block is called with, and its hidden states."""
        calls: list[Call] = []
        states: list[Tensor] = []

        def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
            states.append(hidden_input(args, kwargs))
            calls.append(Call(args, kwargs).without_states())

        hooks = [
            block.module.register_forward_pre_hook(keep, with_kwargs=True, prepend=True)
            for block in self.anatomy.blocks
        ]
        try:
            self.anatomy.base(**placed(batch, self.anatomy.base), **self._plainly)
        finally:
            for hook in hooks:
                hook.remove()
        return calls, states

    @torch.no_grad()
    def _check(self, calls: Sequence[Call], states: Sequence[Tensor], name: str) -> None:
        """Refuse models in which something stands between blocks."""
        for number, block in enumerate(self.anatomy.blocks[:-1]):
            alone = calls[number].repeat(block.module, states[number])
            expected = states[number + 1]
            same = alone.shape == expected.shape and len(calls) == len(self.anatomy.blocks)
            if not same or float((alone - expected).abs().max()) > TOLERANCE * float(expected.abs().max()):
                raise CheckpointError(
                    f"block {number + 1} of `{name}` is not fed what block {number} gives, so that blocks cannot be "
                    "quantized one by one; leave out `post_training` and quantize it with a task's data"
                )


class Gram:
    """The mean outer product of what a module is called with, H/2 of arXiv 2210.17323 over the number of inputs."""

    def __init__(self, width: int, device: torch.device) -> None:
        self._sum = torch.zeros(width, width, dtype=torch.float32, device=device)
        self._count = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Add the inputs of a call; as a hook before the forward it sees them as earlier hooks rounded them."""
        inputs = args[0].flatten(0, -2).to(torch.float32)
        self._sum.addmm_(inputs.mT, inputs)
        self._count += len(inputs)

    @property
    def mean(self) -> Tensor:
        """[in, in]; zeros where nothing was seen."""
        return self._sum / max(1, self._count)


@contextmanager
def gram_of(module: nn.Module) -> Iterator[Gram]:
    """The inputs of a matrix's module, recorded inside the `with` block."""
    matrix = Matrix(module)
    gram = Gram(matrix.shape[1], matrix.weight.device)
    hook = module.register_forward_pre_hook(gram)
    try:
        yield gram
    finally:
        hook.remove()
