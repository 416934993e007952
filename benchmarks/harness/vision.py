"""ViTs for images of other sizes than they come for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from pathlib import Path


def write_processor(folder: Path, pixels: int, more: dict[str, Any] | None = None) -> None:
    """The image processor of a ViT for images of that size."""
    size = {"height": pixels, "width": pixels}
    stored = {"image_processor_type": "ViTImageProcessor", "size": size, **(more or {})}
    (folder / "preprocessor_config.json").write_text(json.dumps(stored))


def write_smaller(weights: Path, folder: Path, pixels: int) -> None:
    """Write a ViT for smaller images: its positions, which form a grid, interpolated; its head stays behind.

    Args:
        weights: The checkpoint.
        folder: Where the smaller one goes; its image processor is written last.
        pixels: Height and width of the images.
    """
    model = transformers.ViTModel.from_pretrained(weights, dtype=torch.float32, add_pooling_layer=False)
    positions = model.embeddings.position_embeddings.detach()
    side, new = round((positions.shape[1] - 1) ** 0.5), pixels // model.config.patch_size
    grid = positions[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    model.config.image_size = pixels
    smaller = transformers.ViTModel(model.config, add_pooling_layer=False)
    resized = torch.cat([positions[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
    smaller.load_state_dict({**model.state_dict(), "embeddings.position_embeddings": resized})
    smaller.save_pretrained(folder)
    stored = json.loads((weights / "preprocessor_config.json").read_text())
    write_processor(folder, pixels, {name: stored[name] for name in ("image_mean", "image_std")})
