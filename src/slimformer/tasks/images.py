"""Images to tensors with Pillow and NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import CheckpointError, describe

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from transformers import PretrainedConfig

#: What most vision Transformers were trained with, when no image processor says otherwise.
DEFAULT_MEAN = (0.5, 0.5, 0.5)
#: Pixels a side that an image may have; far more than any model takes.
MOST_PIXELS = 8192
#: Numbers beyond it leave float32 when pixels are multiplied by them.
LARGEST = 1e30
#: Filters of Pillow that every version has.
FILTERS = 6


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
        """The transform an image processor describes; one of `size` pixels a side when there is none.

        Raises:
            CheckpointError: Where it describes something that no image can be turned into.
        """
        if processor is None:
            return cls((size, size))
        try:
            transform = cls._described(processor, size)
            transform._check()
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the image processor describes no way to read an image: {error}; mend its preprocessor_config.json"
            ) from error
        return transform

    @classmethod
    def _described(cls, processor: Any, size: int) -> ImageTransform:
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

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of what an image becomes."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else (self.resize, self.resize))

    def _check(self) -> None:
        """Raise a `ValueError` that names the setting with which nothing could be read."""
        scaled = self.resize if isinstance(self.resize, tuple) else (self.resize, self.resize)
        if not all(1 <= side <= MOST_PIXELS for side in (*scaled, *self.sides)):
            raise ValueError(f"it makes images of `{describe((*scaled, *self.sides))}` pixels a side")
        for name, values in (("image_mean", self.mean), ("image_std", self.std), ("rescale_factor", (self.rescale,))):
            if len(values) not in (1, 3) or not all(abs(value) <= LARGEST for value in values):
                raise ValueError(f"its `{name}` is `{describe(values)}`")
        if not all(self.std) or not self.rescale:
            raise ValueError(f"its `image_std` is `{describe(self.std)}` and its `rescale_factor` `{self.rescale}`")
        if self.resample not in range(FILTERS):
            raise ValueError(f"its `resample` is `{self.resample}`, and Pillow has the filters 0 to {FILTERS - 1}")

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


def check_image_size(processor: Any, config: PretrainedConfig, name: str) -> None:
    """Refuse an image processor that makes images of another size than the model takes.

    Args:
        processor: The image processor.
        config: The model's config.
        name: What the user calls the model.
    """
    sides = getattr(config, "image_size", None)
    if processor is None or sides is None:
        return
    height, width = (sides, sides) if isinstance(sides, int) else sides[:2]
    sides = ImageTransform.of(processor, height).sides
    if sides != (height, width):
        raise CheckpointError(
            f"the image processor of `{name}` makes images of `{sides[0]} x {sides[1]}` pixels, and the model takes "
            f"{height} x {width}; mend `size` in its preprocessor_config.json"
        )


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
