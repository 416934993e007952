from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slimformer.errors import DataError
from slimformer.tasks.readers.images import ImageFile, read_image_folder, split_folders


def picture(kind, size=(8, 6)):
    pixels = np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def test_a_folder_and_a_zip_give_the_same(write, tmp_path):
    names = ["train/cat/1.jpg", "train/dog/2.png", "test/cat/3.JPG"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for name in names:
            content = picture("PNG" if name.endswith("png") else "JPEG")
            write(name, content)
            packed.writestr(f"deep/{name}", content)
    write("train/cat/notes.txt", "no image")
    for root, split in ((tmp_path, "train"), (tmp_path / "a.zip", "deep/train")):
        rows = read_image_folder(root, split).rows
        assert [row.values["label"] for row in rows] == ["cat", "dog"]
        assert [row.values["image"].key for row in rows] == ["train/cat/1.jpg", "train/dog/2.png"]
        image = pickle.loads(pickle.dumps(rows[0].values["image"])).open()
        assert image.size == (8, 6)
    assert split_folders(tmp_path) == ["test", "train"]
    assert split_folders(tmp_path / "a.zip") == ["deep/test", "deep/train"]


def test_what_systems_put_beside_images_is_passed_over(write, tmp_path):
    names = ["train/cat/1.png", "train/dog/2.png"]
    litter = ["__MACOSX/train/cat/._1.png", "train/cat/._1.png", "train/dog/.hidden.png"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for name in [*names, *litter]:
            content = b"Mac OS X" if name in litter else picture("PNG")
            write(name, content)
            packed.writestr(name, content)
    for root in (tmp_path, tmp_path / "a.zip"):
        assert [row.values["image"].key for row in read_image_folder(root, "train").rows] == names
    assert split_folders(tmp_path / "a.zip") == ["train"]


def test_a_zip_is_known_by_what_it_is_and_not_by_its_name(tmp_path, monkeypatch):
    """The same relative path in another folder, and another file in the same place."""
    for folder, kinds in (("one", ["cat"]), ("other", ["dog"]), ("one", ["bird", "fish"])):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        with zipfile.ZipFile("a.zip", "w") as packed:
            for kind in kinds:
                packed.writestr(f"train/{kind}/1.png", picture("PNG"))
        rows = read_image_folder(Path("a.zip"), "train").rows
        assert [row.values["label"] for row in rows] == kinds


def test_broken_images_are_named(write, tmp_path):
    write("train/cat/1.png", b"not an image")
    with pytest.raises(DataError, match=r"train/cat/1.png` is not an image that can be read: no known image format"):
        read_image_folder(tmp_path, "train")
    write("train/cat/1.png", picture("JPEG", (64, 64))[:-200])
    with pytest.raises(DataError, match=r"1.png` is not an image that can be read: image file is truncated"):
        read_image_folder(tmp_path, "train")
    write("train/cat/1.png", picture("PNG", (64, 64))[:-200])
    with pytest.raises(DataError, match=r"1.png` is not an image"):
        read_image_folder(tmp_path, "train")


def test_bytes_after_the_end_of_a_jpeg_do_no_harm(write):
    ImageFile(str(write("a.jpg", picture("JPEG") + b"trailing"))).check()


def test_folders_without_images_and_broken_zips(write, tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="train` holds no images in folders of their classes"):
        read_image_folder(tmp_path, "train")
    with pytest.raises(DataError, match=r"b.zip` is not a zip file that can be read"):
        read_image_folder(write("b.zip", "no"), "train")
