"""The batch of a probe: derived from a config or chosen by the caller, and the same on every machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError, model_validator

from slimformer.artifact.manifest import Record
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

#: Elements an input may have; guards against a forged shape.
MAX_ELEMENTS = 1 << 24
#: Inputs beyond this many values are not written out; give a smaller batch.
MAX_GIVEN = 1 << 16
#: Tokens a row may have; attention takes memory by their square.
MAX_LENGTH = 1 << 10
ROWS, CHOICES, LENGTH, PADDING = 2, 3, 12, 4


class ProbeInput(Record):
    """One tensor of the batch: its values row by row, or the noise of `noise` when there are none."""

    dtype: Literal["int64", "float32", "bool"]
    shape: list[int]
    values: list[int | float] | None = None

    @model_validator(mode="after")
    def _shape_holds_values(self) -> ProbeInput:
        elements = math.prod(self.shape)
        if min(self.shape, default=1) < 1 or elements > MAX_ELEMENTS:
            raise ValueError(f"shape {self.shape} is out of range")
        if self.dtype != "float32" and (elements > MAX_GIVEN or self.shape[-1:] > [MAX_LENGTH]):
            raise ValueError(f"shape {self.shape} has rows of more than {MAX_LENGTH:,} tokens, or too many of them")
        if self.values is not None and len(self.values) != elements:
            raise ValueError(f"{len(self.values)} values do not fill shape {self.shape}")
        if any(abs(value) >= 2**63 for value in self.values or ()):
            raise ValueError("a value is out of range")
        return self

    def tensor(self) -> Tensor:
        """Build the tensor."""
        import torch

        values = noise(math.prod(self.shape)) if self.values is None else torch.tensor(self.values)
        return values.reshape(self.shape).to(getattr(torch, self.dtype))


def noise(count: int) -> Tensor:
    """Spread `count` values over [-1, 1) by integer arithmetic, so that every machine gets the same.

    Value i is (i · 2654435761 mod 2³²) / 2³¹ - 1, rounded to float32.
    """
    import torch

    steps = torch.arange(count, dtype=torch.int64) * 2654435761 % 2**32
    return (steps.double() / 2**31 - 1).float()


def batch_for(model: PreTrainedModel) -> dict[str, ProbeInput]:
    """Derive the batch from the model's config: token sequences, one of them padded, or an image."""
    if model.main_input_name == "pixel_values":
        return _image_batch(model.config)
    return _token_batch(model)


def given_batch(batch: Mapping[str, Tensor]) -> dict[str, ProbeInput]:
    """Write out a batch the caller chose."""
    inputs = {}
    for name, tensor in batch.items():
        if tensor.numel() > MAX_GIVEN:
            raise ArtifactError(
                f"`{name}` of the probe has {tensor.numel():,} values, more than {MAX_GIVEN:,}; give a smaller batch"
            )
        kind = "float32" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        try:
            inputs[name] = ProbeInput.model_validate(
                {"dtype": kind, "shape": list(tensor.shape), "values": tensor.detach().flatten().tolist()}
            )
        except ValidationError as error:
            raise ArtifactError(
                f"`{name}` of the probe cannot be kept: {error.errors()[0]['msg'].lower()}; "
                "give finite int64, float or bool tensors"
            ) from error
    return inputs


def _image_batch(config: Any) -> dict[str, ProbeInput]:
    side = config.image_size
    height, width = (side, side) if isinstance(side, int) else side
    channels = getattr(config, "num_channels", 3)
    batch = {"pixel_values": ProbeInput(dtype="float32", shape=[1, channels, height, width])}
    if config.model_type == "vit_mae":
        # It hides random patches in eval mode too, unless it is told the order.
        patches = (height // config.patch_size) * (width // config.patch_size)
        batch["noise"] = ProbeInput(dtype="float32", shape=[1, patches])
    return batch


def _token_batch(model: PreTrainedModel) -> dict[str, ProbeInput]:
    import torch

    from slimformer.tasks.kinds import input_axes

    config: Any = model.config
    table: Any = model.get_input_embeddings()
    vocabulary = int(table.weight.shape[0])
    padding: Any = getattr(config, "pad_token_id", None)
    padded = padding is not None and 0 <= padding < vocabulary
    # RoBERTa numbers positions from 2 on, hence the room.
    length = max(1, min(LENGTH, (getattr(config, "max_position_embeddings", None) or 512) - 2))
    # Classifiers on decoders take several rows only when they know the padding.
    rows = ROWS if padded else 1
    choices = CHOICES if "choices" in input_axes(type(model).__name__) else 1

    ids = ((noise(rows * choices * length).double() + 1) / 2 * vocabulary).long().reshape(-1, length)
    mask = torch.ones_like(ids)
    if padded:
        ids[ids == padding] = (padding + 1) % vocabulary
        if length > PADDING:
            ids[-1, -PADDING:], mask[-1, -PADDING:] = padding, 0
    shape = [rows, choices, length] if choices > 1 else [rows, length]
    return {
        name: ProbeInput(dtype="int64", shape=shape, values=tensor.flatten().tolist())
        for name, tensor in {"input_ids": ids, "attention_mask": mask}.items()
    }
