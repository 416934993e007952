"""One task of a bank: its bits, its head, and the model they make of the base."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimformer import models
from slimformer.artifact.checks import architecture_of, check_class, check_finite
from slimformer.artifact.layout import MASK
from slimformer.artifact.loading import Loaded, check_stored, checked_manifest, load_processor
from slimformer.artifact.probe.recorded import check_recorded
from slimformer.artifact.storage.mask import check_shapes, narrow
from slimformer.artifact.storage.mask_base import check_processor, find_base, full_size, mask_config
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.bank.sharing import Sealed, SharedBase, put, showing
from slimformer.errors import ArtifactError
from slimformer.formats.drawn import draw
from slimformer.inference.codec import TaskCodec
from slimformer.models.processors import processor_class
from slimformer.views.snapshot import clone

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact import Manifest


@dataclass(frozen=True)
class BankTask:
    """A task on a shared base.

    Args:
        folder: Where its mask lies.
        file: The mask.
        sealed: The model with its own tensors in place and the base's, not masked yet, in all others.
        inside: Names of the weights of the base that are masked when they are needed.
        own_bytes: What the tensors take that are not the base's.
        codec: How it is asked and answers; None where the artifact does not say what its task is.
        shares_processor: Whether it reads with the tokenizer or image processor of the base.
        processor: What it reads with.
        manifest: What the artifact says of itself.
    """

    folder: Path
    file: MaskFile
    sealed: Sealed
    inside: tuple[str, ...]
    own_bytes: int
    codec: TaskCodec | None
    shares_processor: bool
    processor: Any
    manifest: Manifest

    @classmethod
    def read(
        cls, folder: Path, base: SharedBase, source: str, processors: dict[str, Any], *, cast_base: bool, check: bool
    ) -> BankTask:
        """Read the mask of a folder for a base; one for another base is refused.

        Args:
            folder: The folder of the mask.
            base: The base's tensors.
            source: Where the base is.
            processors: The base's own tokenizer, once it is loaded, for all tasks.
            cast_base: Whether the base may be that of the mask cast to 16 bits.
            check: Whether the mask must read inputs and answer as recorded at saving.
        """
        manifest = checked_manifest(folder)
        check_stored(folder, manifest)
        file = MaskFile.read(folder / MASK)
        find_base(file, folder, source, cast=cast_base)
        config = mask_config(folder)
        architecture = architecture_of(folder)
        check_class(folder, manifest, architecture)
        model = base.under(architecture, full_size(config, models.load_config(source)))
        narrow(model, file.kept, str(folder))
        check_shapes(file, model, str(folder))
        check_finite(file.whole, f"`{folder}`")
        file = file.laid_out()
        inside = _fill(model, file, folder)
        shares = bool(file.base.processor) and processor_class([path.name for path in folder.iterdir()]) is None
        if shares:
            check_processor(file.base, source)
        if shares and not processors:
            processors["base"] = models.load_processor(source)
        processor = processors["base"] if shares else load_processor(folder)
        codec = None if manifest.task is None else TaskCodec.of_record(manifest.task, processor, config)
        task = cls(folder, file, Sealed(model), inside, base.lacks(model), codec, shares, processor, manifest)
        # Another device, like a cast base, computes a little differently than the recording did.
        exact = not cast_base and model.device.type == "cpu"
        if check:
            check_recorded(folder, Loaded(task.lazy(), processor, manifest), 4 if exact else 2)
        return task

    @property
    def skeleton(self) -> PreTrainedModel:
        """The model below its masks; refused where a tensor of it was changed in place."""
        return self.sealed.model

    @property
    def mask_bytes(self) -> int:
        """What the packed bits take."""
        return sum(packed.numel() for packed in self.file.bits.values())

    @cached_property
    def masked_bytes(self) -> int:
        """What the masked weights take once they are made."""
        state = self.skeleton.state_dict()
        return sum(state[name].numel() * state[name].element_size() for name in self.inside)

    @cached_property
    def prefix(self) -> str:
        """What stands before the names of the base's weights in this model."""
        return f"{self.skeleton.base_model_prefix}."

    def lazy(self) -> PreTrainedModel:
        """The task's model, with nothing of its own but the head: it masks each weight while it runs."""
        layers, skeleton = {}, self.skeleton
        for name in self.inside:
            path = name.removesuffix(".weight")
            masked = partial(_masked, file=self.file, name=name)
            layers[path] = showing(skeleton.get_submodule(path), masked)
        model: PreTrainedModel = clone(skeleton, layers)
        return model

    def materialise(self) -> PreTrainedModel:
        """The task's model, with masked weights of its own and all other tensors shared."""
        skeleton = self.skeleton
        model: PreTrainedModel = clone(skeleton)
        state = skeleton.state_dict()
        for name in self.inside:
            put(model, name, state[name] * self.file.mask(name).to(state[name].device))
        return model

    def shown(self, name: str, weight: Tensor, place: Tensor) -> Tensor:
        """The task's form of one weight of the bare base, computed in `place`."""
        full = f"{self.prefix}{name}"
        return _masked(weight, place, file=self.file, name=full) if full in self.file.bits else weight


def _masked(weight: Tensor, place: Tensor, *, file: MaskFile, name: str) -> Tensor:
    return torch.mul(weight, file.mask(name).to(weight.device), out=place)


def _fill(model: PreTrainedModel, file: MaskFile, folder: Path) -> tuple[str, ...]:
    """Put a task's own tensors in, and mask what lies outside the base; return what is left to mask later."""
    state = dict(model.state_dict())
    device = next(tensor.device for tensor in state.values() if not tensor.is_meta)
    for name, tensor in file.whole.items():
        put(model, name, tensor.to(device, state[name].dtype))
    for name, record in file.drawn.items():
        put(model, name, draw(file.shapes[name], record.seed, record.deviation).to(device))
    state = dict(model.state_dict())
    prefix = f"{model.base_model_prefix}."
    inside = tuple(name for name in file.bits if name.startswith(prefix) and not file.kept)
    for name in file.bits:
        if name not in inside:
            put(model, name, state[name] * file.mask(name).to(device))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ArtifactError(f"neither the base nor the mask in `{folder}` has `{name}`; copy the mask again")
    return inside
