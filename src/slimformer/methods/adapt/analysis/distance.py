"""How far training has moved the weights: the L2 distance ‖θ_init - θ_t‖ of arXiv 2210.02871, Fig. 5."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.anatomy import Anatomy
from slimformer.anatomy.family import family_of, known
from slimformer.errors import CheckpointError, describe
from slimformer.inference.door import open_model
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    #: A model, its state dict, or the name of a checkpoint or artifact.
    Weights = nn.Module | Mapping[str, Tensor] | str | Path


@dataclass(frozen=True)
class Distance:
    """How far apart two sets of weights are.

    Args:
        total: L2 distance over all parameters that both have, heads left out.
        relative: The distance as a share of the norm of the first weights; 0 where both are 0.
        blocks: L2 distance of each block.
        rest: L2 distance of what stands in no block: embeddings and the final norm.
        parameters: How many numbers were compared.
        left_out: Parameters outside the blocks that only one of them has, or in another shape.
    """

    total: float
    relative: float
    blocks: tuple[float, ...]
    rest: float
    parameters: int
    left_out: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def weight_distance(start: Weights, weights: Weights) -> Distance:
    """Measure the distance between the weights of two models of the same blocks.

    Heads, decoders and poolers, which heads are built on, are left out, and so are buffers; a head around one of the
    models, or around both, changes nothing. Sums are taken in float64.

    Args:
        start: A model, its state dict, or an alias, a folder, a Hub name or an artifact.
        weights: What it is compared with.
    """
    return _distance(_Body.of(start), _Body.of(weights))


def distance_by_round(start: Weights, rounds: Mapping[str, Weights]) -> Finding[dict[str, Distance]]:
    """Measure how far each round of training ended from the weights that all of them began with.

    Args:
        start: The weights before training, as in `weight_distance`.
        rounds: Name of a round → its weights, opened one after the other.
    """
    if not rounds:
        raise CheckpointError("no round was given; give the weights of one or more")
    first = _Body.of(start)
    data = {name: _distance(first, _Body.of(weights)) for name, weights in rounds.items()}
    lines = [
        Series(name, [float(block) for block in range(len(each.blocks))], each.blocks) for name, each in data.items()
    ]
    svg = curves([("L2 distance of a block", lines)], x_label="block")
    caption = f"In all: {'; '.join(f'{name} {each.total:.4g}' for name, each in data.items())}."
    return Finding(data, Figure("Distance from the weights at the start", svg, caption))


@dataclass(frozen=True)
class _Body:
    """The parameters of a model without its head and pooler.

    Args:
        label: What messages call it.
        blocks: For each block, name in the block → values.
        rest: Name in the base model → values, of what stands in no block.
    """

    label: str
    blocks: tuple[dict[str, Tensor], ...]
    rest: dict[str, Tensor]

    @classmethod
    def of(cls, weights: Weights) -> _Body:
        """Take any weights apart."""
        if isinstance(weights, str | Path):
            return cls._of_model(open_model(weights, processor=False).model, f"`{weights}`")
        if isinstance(weights, Mapping):
            return cls._of_state(weights)
        return cls._of_model(weights, f"the {type(weights).__name__}")

    @classmethod
    def _of_model(cls, model: nn.Module, label: str) -> _Body:
        anatomy = Anatomy.of(model)
        return cls._split(label, anatomy.base.named_parameters(), anatomy.family.blocks)

    @classmethod
    def _of_state(cls, state: Mapping[str, Tensor]) -> _Body:
        # A state dict tells nothing of its family, but the blocks stand at one of a few places.
        places = "|".join(re.escape(path) for path in sorted({family_of(name).blocks for name in known()}, key=len))
        pattern = re.compile(rf"((?:[^.]+\.)*?)({places})\.0\.")
        starts = [match for name in state if (match := pattern.match(name))]
        if not starts:
            raise CheckpointError(
                f"a state dict with names such as `{describe(next(iter(state), ''))}` has no blocks of a known family; "
                "give the model itself"
            )
        prefix, path = min((match.groups() for match in starts), key=lambda groups: len(groups[0]))
        base, seen = {}, set()
        for name, tensor in state.items():
            memory = (tensor.data_ptr(), tensor.shape)
            # A tied weight stands there once for each of its names.
            if name.startswith(prefix) and tensor.is_floating_point() and memory not in seen:
                base[name.removeprefix(prefix)] = tensor
                seen.add(memory)
        return cls._split("the state dict", base.items(), path)

    @classmethod
    def _split(cls, label: str, tensors: Iterable[tuple[str, Tensor]], path: str) -> _Body:
        poolers = tuple({f"{pooler.partition('.')[0]}." for name in known() if (pooler := family_of(name).pooler)})
        in_block = re.compile(rf"{re.escape(path)}\.(\d+)\.(.+)")
        blocks: dict[int, dict[str, Tensor]] = {}
        rest = {}
        for name, tensor in tensors:
            if match := in_block.fullmatch(name):
                blocks.setdefault(int(match[1]), {})[match[2]] = tensor.detach()
            elif not name.startswith(poolers):
                rest[name] = tensor.detach()
        return cls(label, tuple(blocks[index] for index in sorted(blocks)), rest)


def _distance(first: _Body, second: _Body) -> Distance:
    _check_blocks(first, second)
    blocks = tuple(_squares(*pair) for pair in zip(first.blocks, second.blocks, strict=True))
    shared = {name for name in first.rest.keys() & second.rest.keys() if _same_shape(name, first.rest, second.rest)}
    rest = _squares(*({name: each.rest[name] for name in sorted(shared)} for each in (first, second)))
    compared = [tensor for block in first.blocks for tensor in block.values()] + [first.rest[name] for name in shared]
    total = math.fsum((*blocks, rest))
    norm = math.fsum(float(tensor.double().square().sum()) for tensor in compared)
    return Distance(
        total=math.sqrt(total),
        relative=math.sqrt(total / norm) if norm else math.inf if total else 0.0,
        blocks=tuple(map(math.sqrt, blocks)),
        rest=math.sqrt(rest),
        parameters=sum(tensor.numel() for tensor in compared),
        left_out=tuple(sorted((first.rest.keys() | second.rest.keys()) - shared)),
    )


def _check_blocks(first: _Body, second: _Body) -> None:
    """Refuse weights whose blocks do not correspond, since a distance over a part of them would mislead."""
    if len(first.blocks) != len(second.blocks):
        raise CheckpointError(
            f"{first.label} has {len(first.blocks)} blocks and {second.label} {len(second.blocks)}; "
            "compare weights that one model was trained to"
        )
    for index, (one, other) in enumerate(zip(first.blocks, second.blocks, strict=True)):
        odd = one.keys() ^ other.keys() or {name for name in one if not _same_shape(name, one, other)}
        if odd:
            raise CheckpointError(
                f"`{min(odd)}` of block {index} is not in both {first.label} and {second.label} in the same shape; "
                "compare plain weights of one model, before they are quantized or pruned"
            )


def _same_shape(name: str, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one[name].shape == other[name].shape


def _squares(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.fsum(float((tensor.double() - other[name].double()).square().sum()) for name, tensor in one.items())
