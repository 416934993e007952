"""Putting scores on a model and taking the mask off them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.artifact.storage.mask import MaskStorage, narrow
from slimformer.methods.mask.choice import Place, choose, new_head
from slimformer.methods.mask.schedule import Scheduled, ScheduledMask
from slimformer.views import MaskView, attach, attached, bake, magnitude_scores, uniform_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.artifact.storage.mask_file import Unit
    from slimformer.methods.mask.config import MaskConfig
    from slimformer.train import Objective


@dataclass
class Masking:
    """The masks of one run, from their first scores to their last bits.

    Args:
        config: The settings.
        views: Where each mask stands.
        kept: Which neurons and heads were kept, by block, once the run is done.
        bits: Name of a weight → which of its entries were kept, once the run is done.
    """

    config: MaskConfig
    views: list[tuple[Place, MaskView]]
    kept: dict[int, dict[Unit, Tensor]] = field(default_factory=dict)
    bits: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def start(cls, model: PreTrainedModel, config: MaskConfig) -> Masking:
        """Freeze a model and put scores on the matrices that are masked; a new head stays trainable."""
        model.requires_grad_(False)
        if config.classifier == "trained":
            for head in new_head(model).values():
                head.requires_grad_(True)
        views = []
        for place in choose(model, config):
            view = _view(place, config)
            attach(place.matrix, view)
            views.append((place, view))
        return cls(config, views)

    def objective(self) -> Objective | None:
        """What to minimise: the task's own loss; None where nothing depends on the step."""
        scheduled = [view for _, view in self.views if isinstance(view, ScheduledMask)]
        moving = [view for view in scheduled if view.target is not None or view.group is not None]
        return Scheduled(moving, self.config.ramp_steps, self.config.accumulation) if moving else None

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
        return MaskStorage(self.bits, self.kept)


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
    generator = torch.Generator().manual_seed((config.seed << 16) + place.number)
    return uniform_scores(shape, config.initial_sparsity, config.threshold, generator=generator)
