from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from slimformer.errors import DataError
from slimformer.tasks.readers.idx import read_idx, read_idx_array

PIXELS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def idx(array, kind=8):
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_images_with_their_labels_plain_and_packed(write):
    images = write("train-images-idx3-ubyte.gz", gzip.compress(idx(PIXELS)))
    labels = write("train-labels-idx1-ubyte", idx(np.array([7, 0], np.uint8)))
    rows = read_idx(images, labels).rows
    assert [row.values["label"] for row in rows] == ["7", "0"]
    assert (np.asarray(rows[1].values["image"].open()) == PIXELS[1]).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK..", "a` is not an idx file: it begins `504b2e2e`"),
        (idx(PIXELS)[:-1], "has 39 bytes where its header promises 40"),
        (idx(PIXELS) + b"x", "has 41 bytes where its header promises 40"),
        (idx(PIXELS)[:7], "ends inside its header"),
        (idx(PIXELS, kind=13), "holds 3 dimensions of type 0x0d where 3 of unsigned bytes"),
        (idx(PIXELS[0]), "holds 2 dimensions of type 0x08 where 3"),
    ],
)
def test_other_bytes_are_refused(write, content, message):
    with pytest.raises(DataError, match=message):
        read_idx_array(write("a", content), 3)


def test_as_many_labels_as_images(write):
    with pytest.raises(DataError, match=r"has 2 images and .* has 1 labels"):
        read_idx(write("i", idx(PIXELS)), write("l", idx(np.array([7], np.uint8))))
