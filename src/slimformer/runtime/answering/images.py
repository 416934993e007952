"""Images as the patches of a model read them, by the settings of a folder; Pillow opens and scales them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ConfigError, DataError, describe
from slimformer.files import as_path
from slimformer.runtime.checkpoint import EngineError, read_object

if TYPE_CHECKING:
    from slimformer.runtime.onnx import Array

#: Files with the settings of an image processor; in the second they lie one level deeper.
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
#: What processors do where their files do not say it.
_VIT = {
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_center_crop": False,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_DEIT = {**_VIT, "size": {"height": 256, "width": 256}, "resample": 3, "do_center_crop": True}
USUAL = {
    **dict.fromkeys(("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor"), _VIT),
    **dict.fromkeys(("DeiTImageProcessor", "DeiTImageProcessorFast", "DeiTFeatureExtractor"), _DEIT),
}


class ImageReader:
    """The image processor of a folder.

    Args:
        folder: Where its settings lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = _read(folder)
        kind = own.get("image_processor_type", own.get("feature_extractor_type"))
        if not isinstance(kind, str) or kind not in USUAL:
            raise EngineError(
                f"`{folder}` prepares images by `{describe(kind)}`, and the engine by {', '.join(USUAL)}; prepare them "
                "yourself and give them to `encoder.run_images`"
            )
        self.settings = {**USUAL[kind], **{name: value for name, value in own.items() if value is not None}}
        for name, fits in (("image_mean", _numbers), ("image_std", _divisors), ("rescale_factor", _number)):
            if not fits(self.settings[name]):
                raise EngineError(f"`{folder}` has the {name} `{describe(self.settings[name])}`; copy it again")

    def read(self, images: Iterable[Any]) -> Array:
        """Pixels of images, float32, [images, channels, height, width]."""
        pixels = [self._pixels(each) for each in images]
        if len({each.shape for each in pixels}) > 1:
            raise DataError(
                f"images have the shapes {sorted({each.shape for each in pixels})}, and `{self.folder}` does not scale "
                "them; give such of one size"
            )
        return np.stack(pixels)

    def _pixels(self, asked: Any) -> Array:
        settings, image = self.settings, _open(asked)
        try:
            if settings["do_resize"]:
                image = image.resize(self._size(image.size), settings["resample"])
            if settings["do_center_crop"]:
                image = image.crop(self._crop(image.size))
        except (OSError, ValueError, TypeError, MemoryError) as error:
            raise EngineError(f"`{self.folder}` scales images in a way that fails: {error}; copy it again") from error
        pixels = np.asarray(image, np.float64)
        if settings["do_rescale"]:
            pixels = pixels * settings["rescale_factor"]
        if settings["do_normalize"]:
            pixels = (pixels - np.array(settings["image_mean"])) / np.array(settings["image_std"])
        return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)

    def _size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height that an image is scaled to."""
        target = _sides(self.settings["size"])
        shortest = target.get("shortest_edge")
        if target.keys() == {"height", "width"}:
            return target["width"], target["height"]
        if target.keys() != {"shortest_edge"} or shortest is None:
            raise self._unknown("size")
        width, height = size
        longest = int(shortest * max(size) / min(size))
        return (shortest, longest) if width <= height else (longest, shortest)

    def _crop(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the middle of an image."""
        target = _sides(self.settings["crop_size"])
        if target.keys() != {"height", "width"} or target["width"] > size[0] or target["height"] > size[1]:
            raise self._unknown("crop_size")
        left, top = (size[0] - target["width"]) // 2, (size[1] - target["height"]) // 2
        return left, top, left + target["width"], top + target["height"]

    def _unknown(self, name: str) -> EngineError:
        return EngineError(
            f"`{self.folder}` has the {name} `{describe(self.settings[name])}`, which the engine does not scale images "
            "to; prepare them yourself and give them to `encoder.run_images`"
        )


def listed(asked: Any) -> tuple[list[Any], bool]:
    """Images that were given, and whether only one was."""
    array = isinstance(asked, np.ndarray)
    alone = isinstance(asked, str | Path) or (array and asked.ndim < 4) or hasattr(asked, "convert")
    images = [asked] if alone else list(asked) if isinstance(asked, Iterable) and not isinstance(asked, Mapping) else []
    if not images:
        raise DataError(f"`{describe(asked)}` is no image; give the path of one, one of Pillow, or an array")
    return images, alone


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(
            "images are opened and scaled by Pillow, which is not installed; run: pip install pillow, or prepare them "
            "yourself and give them to `encoder.run_images`"
        ) from error


def _open(asked: Any) -> Any:
    """An image of Pillow in red, green and blue."""
    pillow = _pillow()
    if isinstance(asked, np.ndarray):
        return pillow.fromarray(_channels_last(asked)).convert("RGB")
    if isinstance(asked, str) and asked.startswith(("http://", "https://")):
        raise DataError(f"`{describe(asked)}` lies on another machine; fetch it, and give the path of the file")
    try:
        if isinstance(asked, str | Path):
            with pillow.open(as_path(asked)) as file:
                return file.convert("RGB")
        if isinstance(asked, pillow.Image):
            return asked.convert("RGB")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise DataError(f"`{describe(asked)}` cannot be opened as an image: {error}; give another file") from error
    raise DataError(f"`{describe(asked)}` is no image; give the path of one, one of Pillow, or an array")


def _channels_last(array: Array) -> Array:
    """An array of bytes as Pillow reads it, [height, width, 3] or [height, width]."""
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) and array.size
    if not fits:
        raise DataError(
            f"`{array.dtype}` of shape {list(array.shape)} is no image; give numbers of uint8, [height, width, 3] or "
            "[3, height, width], or prepare them yourself and give them to `encoder.run_images`"
        )
    return np.ascontiguousarray(array)


def _read(folder: Path) -> dict[str, Any]:
    for name in (PREPROCESSOR, PROCESSOR):
        content: Any = read_object(folder, name, optional=True)
        if name == PROCESSOR:
            content = content.get("image_processor", content)
        if content and isinstance(content, dict):
            return content
    raise EngineError(
        f"`{folder}` has no {PREPROCESSOR} with settings; copy it again, or prepare images yourself and give them "
        "to `NativeEncoder.run_images`"
    )


def _sides(size: Any) -> dict[str, int]:
    """Sides that a setting names; an older one is a number for both."""
    sides = {"height": size, "width": size} if type(size) is int else size
    fits = isinstance(sides, dict) and all(type(side) is int and 0 < side < 1 << 16 for side in sides.values())
    return sides if fits else {}


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < abs(value) < float("inf")


def _numbers(value: Any) -> bool:
    fits = isinstance(value, list) and len(value) == 3
    return fits and all(type(each) in (int, float) and abs(each) < float("inf") for each in value)


def _divisors(value: Any) -> bool:
    return _numbers(value) and all(value)
