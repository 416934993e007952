"""Images to tensors with Pillow and NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

#: What most vision Transformers were trained with, when no image processor says otherwise.
DEFAULT_MEAN = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ImageTransform:
    """How an image becomes the model's input.

    Args:
        resize: Height and width both sides are scaled to, or one number for the shorter side.
        crop: Height and width cut out of the centre; None to keep all.
        mean: Subtracted from each channel.
        std: Each channel is divided by it.
        rescale: What a byte is multiplied by.
        resample: Pillow's number of the filter.
    """

    resize: tuple[int, int] | int
    crop: tuple[int, int] | None = None
    mean: tuple[float, ...] = DEFAULT_MEAN
    std: tuple[float, ...] = DEFAULT_MEAN
    rescale: float = 1 / 255
    resample: int = 2  # bilinear

    @classmethod
    def of(cls, processor: Any, size: int) -> ImageTransform:
        """The transform an image processor describes; one of `size` pixels a side when there is none."""
        if processor is None:
            return cls((size, size))
        wanted = _mapping(getattr(processor, "size", None)) or {"height": size, "width": size}
        cropped = _mapping(getattr(processor, "crop_size", None)) if getattr(processor, "do_center_crop", False) else {}
        edge = wanted.get("shortest_edge")
        crop = (cropped["height"], cropped["width"]) if cropped else (edge, edge) if edge else None
        normalise, rescale = getattr(processor, "do_normalize", True), getattr(processor, "do_rescale", True)
        return cls(
            edge or (wanted["height"], wanted["width"]),
            crop,
            _channels(processor, "image_mean") if normalise else (0.0,) * 3,
            _channels(processor, "image_std") if normalise else (1.0,) * 3,
            float(getattr(processor, "rescale_factor", None) or 1 / 255) if rescale else 1.0,
            int(getattr(processor, "resample", None) or 2),
        )

    def __call__(self, image: Image) -> NDArray[np.float32]:
        """Colour, size, centre, normalise: [3, height, width]."""
        image = self._centre(self._scale(image.convert("RGB")))
        pixels = np.asarray(image, np.float32) * np.float32(self.rescale)
        normalised = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(normalised.transpose(2, 0, 1))

    def _scale(self, image: Image) -> Image:
        if isinstance(self.resize, tuple):
            height, width = self.resize
        else:
            shorter = min(image.size)
            width, height = (max(self.resize, round(side * self.resize / shorter)) for side in image.size)
        return image if image.size == (width, height) else image.resize((width, height), self.resample)

    def _centre(self, image: Image) -> Image:
        if self.crop is None:
            return image
        height, width = self.crop
        left, top = (image.width - width) // 2, (image.height - height) // 2
        # Pillow fills what lies outside a small image with black, as image processors do.
        return image.crop((left, top, left + width, top + height))


def _channels(processor: Any, name: str) -> tuple[float, ...]:
    return tuple(getattr(processor, name, None) or DEFAULT_MEAN)


def _mapping(size: Any) -> dict[str, int]:
    """A processor's size, which may be a number, a mapping or an object, as a mapping."""
    if size is None:
        return {}
    if isinstance(size, int):
        return {"height": size, "width": size}
    items = size if isinstance(size, Mapping) else vars(size)
    return {name: int(value) for name, value in items.items() if value is not None}
