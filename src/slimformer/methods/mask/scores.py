"""Which matrices get scores, putting them on a model, and taking the mask off them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy, Matrix
from slimformer.anatomy.block import refuse_pinned_heads
from slimformer.artifact.storage.mask import MaskStorage, draw_head, narrow
from slimformer.artifact.storage.mask_file import DrawnRecord
from slimformer.errors import ConfigError
from slimformer.methods.mask.schedule import Scheduled
from slimformer.views import MaskView, ScheduledMask, attach, attached, bake, magnitude_scores, uniform_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.artifact.storage.mask_file import Unit
    from slimformer.methods.mask.config import MaskConfig
    from slimformer.train import Objective

#: Standard deviation of a new head's weights where the config names none.
DEVIATION = 0.02


@dataclass(frozen=True)
class Place:
    """A matrix that gets scores.

    Args:
        matrix: The matrix.
        number: What its initial scores depend on besides the seed, the same whatever else is masked.
        block: Its block; None outside the blocks.
        unit: What its columns are dropped by together; None for each weight by itself.
        units: How many of them there are.
        in_head: Whether it belongs to a new head, which is drawn and never trained.
    """

    matrix: Matrix
    number: int
    block: int | None = None
    unit: Unit | None = None
    units: int = 0
    in_head: bool = False

    @property
    def group(self) -> tuple[int, int]:
        """Shape of one score per unit."""
        return 1, self.units


def choose(model: PreTrainedModel, config: MaskConfig) -> list[Place]:
    """The matrices to mask, in the order of the model."""
    anatomy = Anatomy.of(model)
    if config.prunes("heads"):
        refuse_pinned_heads(anatomy.family)
    places = []
    for number in checked_blocks(config, len(anatomy.blocks)):
        block = anatomy.blocks[number]
        for index, (role, matrix) in enumerate(block.matrices.items()):
            where = number * 16 + index
            if role == "down" and config.prunes("neurons"):
                places.append(Place(matrix, where, number, "neurons", block.ffn_width))
            elif role == "output" and config.prunes("heads"):
                places.append(Place(matrix, where, number, "heads", block.key_value_heads))
            elif role in config.roles:
                places.append(Place(matrix, where, number))
    beyond = len(anatomy.blocks) * 16
    if config.masks("pooler") and anatomy.pooler is not None:
        places.append(Place(anatomy.pooler, beyond))
    if config.masks("classifier") and config.classifier == "masked":
        heads = enumerate(head_matrices(model))
        places += [Place(matrix, beyond + 1 + index, in_head=True) for index, matrix in heads]
    if not places:
        raise ConfigError(f"`--matrices` is `{config.matrices}`, none of which the model has; give others")
    return places


def checked_blocks(config: MaskConfig, count: int) -> list[int]:
    """The numbers of the blocks to mask; one the model does not have is an error."""
    numbers = config.block_numbers(count)
    if not numbers or numbers[0] < 0 or numbers[-1] >= count:
        asked = next(
            f"`--{name.replace('_', '-')}` is `{value}`"
            for name in ("top_down", "bottom_up", "blocks")
            if (value := getattr(config, name)) is not None
        )
        raise ConfigError(f"{asked}, but the model has {count} blocks, 0 to {count - 1}; give some of these")
    return numbers


def new_head(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules of a task's head; none where the head is that of pretraining, which belongs to the base."""
    if model.get_output_embeddings() is not None:
        return {}
    return Anatomy.of(model).head


def head_matrices(model: PreTrainedModel) -> list[Matrix]:
    """The matrices of a task's head."""
    return [
        Matrix(model, f"{name}.{path}" if path else name)
        for name, head in new_head(model).items()
        for path, module in head.named_modules()
        if isinstance(module, nn.Linear)
    ]


@dataclass
class Masking:
    """The masks of one run, from their first scores to their last bits.

    Args:
        config: The settings.
        views: Where each mask stands.
        kept: Which neurons and heads were kept, by block, once the run is done.
        bits: Name of a weight → which of its entries were kept, once the run is done.
        drawn: Name of a weight of the head → how it was drawn.
    """

    config: MaskConfig
    views: list[tuple[Place, MaskView]]
    kept: dict[int, dict[Unit, Tensor]] = field(default_factory=dict)
    bits: dict[str, Tensor] = field(default_factory=dict)
    drawn: dict[str, DrawnRecord] = field(default_factory=dict)

    @classmethod
    def start(cls, model: PreTrainedModel, config: MaskConfig) -> Masking:
        """Freeze a model and put scores on the matrices that are masked; a new head stays trainable."""
        model.requires_grad_(False)
        if config.classifier == "trained":
            for head in new_head(model).values():
                head.requires_grad_(True)
        views, places = [], choose(model, config)
        deviation = getattr(model.config, "initializer_range", DEVIATION)
        drawn = {
            f"{place.matrix.path}.weight": DrawnRecord(seed=_seed(place, config) % 2**32, deviation=deviation)
            for place in places
            if place.in_head
        }
        draw_head(model, drawn, "memory")
        for place in places:
            view = _view(place, config)
            attach(place.matrix, view)
            views.append((place, view))
        return cls(config, views, drawn=drawn)

    def objective(self) -> Objective | None:
        """What to minimise: the task's own loss; None where nothing depends on the step."""
        scheduled = [view for _, view in self.views if isinstance(view, ScheduledMask)]
        moving = [view for view in scheduled if view.target is not None or view.group is not None]
        return Scheduled(moving, self.config.ramp_steps) if moving else None

    def end(self, model: PreTrainedModel) -> None:
        """Keep the bits alone: bake the masks in and remove for good the neurons and heads that are dropped."""
        model.eval()  # scheduled masks show what they end with
        for place, view in self.views:
            if place.unit is not None and place.block is not None:
                assert isinstance(view, ScheduledMask)
                self.kept.setdefault(place.block, {})[place.unit] = view.final_bits().flatten().bool().cpu()
        single = {id(view) for place, view in self.views if place.unit is None}
        self.bits = _bits(model, single)
        bake(model)
        if self.kept:
            self.bits = _narrowed(model, self.bits, self.kept)
            narrow(model, self.kept, "memory")
        model.requires_grad_(True)

    def storage(self) -> MaskStorage:
        """How the model is stored: as the bits this run ended with."""
        return MaskStorage(self.bits, self.kept, self.drawn)


@torch.no_grad()
def _bits(model: PreTrainedModel, views: set[int]) -> dict[str, Tensor]:
    """The bits of the weights under these views, as the modules hold them: what the views make of ones."""
    bits: dict[str, Tensor] = {}
    for at in attached(model):
        if id(at.view) in views and f"{at.path}.{at.tensor}" not in bits:
            weight = at.original.data
            at.original.data = torch.ones_like(weight)
            bits[f"{at.path}.{at.tensor}"] = getattr(at.module, at.tensor) != 0
            at.original.data = weight
    return bits


@torch.no_grad()
def _narrowed(
    model: PreTrainedModel, bits: dict[str, Tensor], kept: dict[int, dict[Unit, Tensor]]
) -> dict[str, Tensor]:
    """The bits that are left when neurons and heads are removed."""
    copied = copy.deepcopy(model)
    for name, mask in bits.items():
        copied.get_parameter(name).copy_(mask)
    narrow(copied, kept, "memory")
    return {name: copied.get_parameter(name) != 0 for name in bits}


def _view(place: Place, config: MaskConfig) -> MaskView:
    grouped = place.unit is not None and not config.anneal
    scores = _first_scores(place, config, place.group if grouped else place.matrix.shape)
    if place.unit is None and config.sparsity is None:
        return MaskView(scores, config.threshold)
    group = place.group if place.unit is not None and config.anneal else None
    return ScheduledMask(scores, config.threshold, config.initial_sparsity, config.sparsity, group)


def _first_scores(place: Place, config: MaskConfig, shape: tuple[int, int]) -> Tensor:
    if config.init == "magnitude":
        weight = place.matrix.weight.detach()
        if shape != tuple(weight.shape):
            weight = weight.unflatten(1, (shape[1], -1)).square().mean(dim=(0, 2)).sqrt()[None]
        return magnitude_scores(weight, config.initial_sparsity, config.threshold)
    # A generator of its own for each matrix: the same seed gives it the same scores whatever else is masked.
    generator = torch.Generator().manual_seed(_seed(place, config))
    return uniform_scores(shape, config.initial_sparsity, config.threshold, generator=generator)


def _seed(place: Place, config: MaskConfig) -> int:
    return (config.seed << 16) + place.number
