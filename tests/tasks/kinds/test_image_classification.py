from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from PIL import Image
from transformers import ViTImageProcessorPil

from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.images import ImageTransform


def png(colour, mode="RGB", size=(10, 8)):
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, "PNG")
    return file.getvalue()


def test_a_folder_of_class_folders(write, tmp_path):
    for split in ("train", "val"):
        write(f"{split}/red/1.png", png((255, 0, 0)))
        write(f"{split}/grey/2.png", png(128, "L"))
    data = get_task("image-classification").load(tmp_path)
    assert data.labels == ["grey", "red"]
    features = data.prepare("dev", None, max_length=4)
    batch = data.collator(None)(features[:])
    assert batch["pixel_values"].shape == (2, 3, 4, 4)
    assert batch["pixel_values"][1, :, 0, 0].tolist() == [1.0, -1.0, -1.0]
    assert np.ptp(batch["pixel_values"][0].numpy()) == 0
    assert data.compute_metrics("dev", features, np.eye(2))["accuracy"] == 1.0


def test_a_zip_and_what_it_lacks(tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as packed:
        for label in ("a", "b"):
            packed.writestr(f"train/{label}/1.png", png((1, 2, 3)))
    for source in (tmp_path, tmp_path / "images.zip"):
        assert len(get_task("image-classification").load(source, ["train"])["train"]) == 2
        with pytest.raises(
            DataError, match=r"images.zip` has no folder for the split `dev`; looked for: .*found: train"
        ):
            get_task("image-classification").load(source)


def test_a_folder_without_images(tmp_path):
    with pytest.raises(DataError, match=r"has no train split of images; looked for: train/<class>/.*found: nothing"):
        get_task("image-classification").load(tmp_path)


def test_transforms_are_those_of_a_processor():
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    processor = ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
    )
    expected = processor(image, return_tensors="np")["pixel_values"][0]
    assert ImageTransform.of(processor, 1)(image) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("size", "crop", "resize", "cropped"),
    [
        ({"shortest_edge": 20}, {"height": 16, "width": 16}, 20, (16, 16)),
        ({"shortest_edge": 20}, None, 20, (20, 20)),
        ({"height": 24, "width": 12}, None, (24, 12), None),
        (8, {"height": 4, "width": 6}, (8, 8), (4, 6)),
    ],
)
def test_sizes(size, crop, resize, cropped):
    class Processor:
        do_center_crop = crop is not None
        crop_size = crop

    Processor.size = size
    transform = ImageTransform.of(Processor(), 1)
    assert (transform.resize, transform.crop) == (resize, cropped)
    shape = transform(Image.new("RGB", (60, 40))).shape[1:]
    assert shape == (cropped or resize)


def test_images_of_the_real_sets(shared_data):
    data = get_task("cifar10").load(shared_data / "cifar10-jpg", ["test"], limit=20)
    batch = data.collator(None)(data.prepare("test", None)[:])
    assert batch["pixel_values"].shape == (20, 3, 32, 32)
    assert batch["pixel_values"].abs().max() <= 1
