"""The batch a model is asked at saving: derived from its config, or chosen by the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from slimformer.artifact.probe import MAX_GIVEN, ProbeInput, noise
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

ROWS, CHOICES, LENGTH, PADDING = 2, 3, 12, 4


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
