from __future__ import annotations

import gzip
import io
import logging
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from transformers import ViTImageProcessor

from slimformer.corpus import ImageStream, TextStream, open_images, open_stream
from slimformer.errors import DataError
from slimformer.tasks.images import ImageTransform
from tests.corpora import making


def picture(shade: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), shade, np.uint8)).save(file, kind)
    return file.getvalue()


def shades(stream, count: int, start: int = 0) -> list[int]:
    """The shade of each example, which is grey all over."""
    values = [stream[number]["pixel_values"] for number in range(start, start + count)]
    assert all(value.min() == value.max() for value in values)
    return [round(float(value.max() + 1) * 255 / 2) for value in values]


@pytest.fixture
def folder(write, tmp_path):
    for shade in range(30):
        write(f"images/{'cat' if shade % 2 else 'deep/dog'}/{shade:02}.png", picture(shade))
    write("images/notes.txt", "no image")
    write("images/.hidden/1.png", picture(99))
    return tmp_path / "images"


@pytest.fixture(params=["folder", "zip", "idx"])
def corpus(request, folder, tmp_path):
    if request.param == "folder":
        return open_images(folder)
    if request.param == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
            for path in folder.rglob("*.png"):
                if "hidden" not in str(path):
                    packed.write(path, path.relative_to(folder))
        return open_images(tmp_path / "a.zip")
    pixels = np.repeat(np.arange(30, dtype=np.uint8), 48)
    content = struct.pack(">4B3I", 0, 0, 8, 3, 30, 6, 8) + pixels.tobytes()
    (tmp_path / "idx").mkdir()
    (tmp_path / "idx" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    return open_images(tmp_path / "idx")


def test_every_image_comes_once_an_epoch_in_ever_new_order(corpus):
    stream = corpus.stream(size=4, seed=3)
    assert stream.epoch_size() == len(corpus) == 30
    first, second = shades(stream, 30), shades(stream, 30, 30)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    assert first != sorted(first)
    assert shades(corpus.stream(size=4, seed=3), 60) == first + second
    assert shades(corpus.stream(size=4, seed=4), 30) != first
    assert [shades(stream, 1, number)[0] for number in (45, 2, 31)] == [second[15], first[2], second[1]]


def test_images_are_what_the_processor_makes_of_them(folder):
    processor = ViTImageProcessor(size={"height": 10, "width": 12}, image_mean=[0.2] * 3, image_std=[0.3] * 3)
    stream = open_images(folder).stream(processor)
    values = stream[0]["pixel_values"]
    assert values.shape == (3, 10, 12)
    assert values.dtype == np.float32
    first = np.random.default_rng([0, 0]).permutation(30)[0]
    with open_images(folder).images[first].open() as image:
        np.testing.assert_array_equal(values, ImageTransform.of(processor, 0)(image))


def test_data_loaders_and_workers(corpus):
    stream = pickle.loads(pickle.dumps(corpus.stream(size=4)))
    batches = list(DataLoader(stream.first(40), 8, collate_fn=stream.collator(), num_workers=1))
    assert [batch["pixel_values"].shape for batch in batches] == [(8, 3, 4, 4)] * 5
    assert batches[0]["pixel_values"].dtype == torch.float32


def test_an_image_that_breaks_later_is_passed_over(folder, caplog):
    corpus = open_images(folder)
    path = folder / "cat" / "07.png"
    path.write_bytes(b"no image")
    with caplog.at_level(logging.WARNING, "slimformer.corpus"):
        found = shades(corpus.stream(size=4), 30)
    assert sorted(found) == sorted([*(shade for shade in range(30) if shade != 7), 9])  # the next file, in order
    assert "07.png` is not an image that can be read" in caplog.text
    for each in folder.rglob("*.png"):
        each.write_bytes(b"no image")
    with pytest.raises(DataError, match="images one after another cannot be read"):
        corpus.stream(size=4)[0]


def test_what_is_wrong_is_said_when_opening(write, tmp_path):
    with pytest.raises(DataError, match=r"nothing at `.*nope`; give an image folder"):
        open_images(tmp_path / "nope")
    write("text/a.txt", "text")
    with pytest.raises(DataError, match=r"text` holds no images; give folders of .*\.jpg"):
        open_images(tmp_path / "text")
    with pytest.raises(DataError, match=r"a.txt` is no image, no zip file and no idx file"):
        open_images(tmp_path / "text" / "a.txt")
    with pytest.raises(DataError, match="no path holds no images"):
        open_images([])
    with pytest.raises(DataError, match=r"b.png` is not an image that can be read"):
        open_images(write("b.png", "no image"))
    with pytest.raises(DataError, match=r"c.zip` is not a zip file that can be read"):
        open_images(write("c.zip", "no zip"))
    with pytest.raises(DataError, match="seed `-1` is negative"):
        open_images(write("d.png", picture(1))).stream(seed=-1)


def test_the_processor_tells_text_from_images(folder):
    text = open_stream(folder / "notes.txt", making.bert(), 16, memo=folder / "memo", seed=1)
    assert isinstance(text, TextStream)
    assert text[0]["input_ids"].tolist() == making.bert()("no image")["input_ids"]
    assert (folder / "memo").is_file()
    images = open_stream([folder], ViTImageProcessor(size={"height": 4, "width": 4}), 16)
    assert isinstance(images, ImageStream)
    assert images[0]["pixel_values"].shape == (3, 4, 4)
    assert open_stream(folder, None, 16)[0]["pixel_values"].shape == (3, 16, 16)
    with pytest.raises(DataError, match="text_column is `x`, but the model reads images"):
        open_stream(folder, None, 16, text_column="x")


def test_real_images(shared_data):
    path = shared_data / "fashion-mnist" / "t10k-images-idx3-ubyte.gz"
    stream = open_images(path).stream(size=28)
    assert stream.epoch_size() == 10_000
    mean = np.mean([stream[number]["pixel_values"] for number in range(500)])
    assert -0.5 < mean < -0.3  # mostly black
    packed = open_images(shared_data / "cifar10-jpg" / "cifar10_subset.zip").stream(size=32)
    assert packed.epoch_size() == 18_000
    assert packed[18_001]["pixel_values"].std() > 0.05
