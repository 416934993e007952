"""Masked autoencoding of images: the pixels of hidden patches (arXiv 2111.06377, section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slimformer.errors import ObjectiveError

if TYPE_CHECKING:
    from torch import Tensor

#: Added to the variance of a patch, so that one of a single colour can be normalised.
EPSILON = 1e-6


def patch_loss(
    pixel_values: Tensor, predictions: Tensor, mask: Tensor, patch_size: int, *, normalize: bool = False
) -> Tensor:
    """Squared error of the pixels of hidden patches.

    A mean over the numbers of a patch, over the hidden patches of each image, and over images.

    Args:
        pixel_values: [batch, channels, height, width]; no gradient flows to them.
        predictions: What a decoder says, [batch, patches, patch_size² · channels].
        mask: [batch, patches], 1 for patches that were hidden; those that were seen do not count.
        patch_size: Pixels a side.
        normalize: Compare with pixels normalised patch by patch: less their mean, over their standard deviation.

    Example:
        >>> outputs = autoencoder(pixel_values, noise=noise)
        >>> patch_loss(pixel_values, outputs.logits, outputs.mask, patch_size=16)
    """
    output = predictions.to(torch.promote_types(predictions.dtype, torch.float32))
    target = patchify(pixel_values.detach().to(output.dtype), patch_size)
    if target.shape != output.shape or mask.shape != output.shape[:2]:
        raise ObjectiveError(
            f"the image has patches {list(target.shape)}, and there are predictions {list(output.shape)} and a mask "
            f"{list(mask.shape)}; shapes must agree"
        )
    if normalize:
        variance, mean = torch.var_mean(target, dim=-1, keepdim=True)  # unbiased, as in the published code
        target = (target - mean) / (variance + EPSILON).sqrt()
    errors = (output - target).square().mean(-1)  # [batch, patches]
    hidden = mask.bool()
    per_image = errors.masked_fill(~hidden, 0).sum(1) / hidden.sum(1).clamp(min=1)
    return per_image.mean()


def patchify(pixel_values: Tensor, patch_size: int) -> Tensor:
    """Cut images into patches, row by row: [batch, patches, patch_size² · channels].

    The numbers of a patch go row by row too, the channels of a pixel side by side.

    Args:
        pixel_values: [batch, channels, height, width].
        patch_size: Pixels a side, a divisor of height and width.
    """
    height, width = pixel_values.shape[-2:]
    if height % patch_size or width % patch_size:
        raise ObjectiveError(f"patches of {patch_size} pixels do not cover an image of {height} by {width}; resize it")
    rows = pixel_values.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))
    # [batch, channels, down, y, across, x] → [batch, down, across, y, x, channels]
    patches: Tensor = rows.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return patches
