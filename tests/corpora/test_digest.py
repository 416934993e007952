from __future__ import annotations

import shutil

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from slimformer.corpus import open_corpus, open_images


@pytest.fixture
def folder(write, tmp_path):
    write("corpus/a.txt", "one\ntwo\n" * 40_000)
    write("corpus/b.jsonl", '{"text": "three", "body": "four"}\n')
    return tmp_path / "corpus"


def test_the_digest_is_that_of_the_content_wherever_it_lies(folder, tmp_path):
    digest = open_corpus(folder).digest()
    assert open_corpus(folder).digest() == digest
    shutil.copytree(folder, tmp_path / "copy")
    assert open_corpus(tmp_path / "copy").digest() == digest


def test_the_digest_changes_with_whatever_is_read(folder):
    seen = [open_corpus(folder).digest(), open_corpus(folder, documents="paragraphs").digest()]
    seen.append(open_corpus(folder, text_column="body").digest())
    path = folder / "a.txt"
    content = path.read_bytes()
    for changed in (b"One" + content[3:], content[:-2] + b"0\n", content + b"more\n"):
        path.write_bytes(changed)
        seen.append(open_corpus(folder).digest())
    path.write_bytes(content)
    path.rename(folder / "c.txt")
    seen.append(open_corpus(folder).digest())
    (folder / "d.txt").write_text("another")
    seen.append(open_corpus(folder).digest())
    assert len(set(seen)) == len(seen)


def test_the_digest_of_a_data_set_changes_with_its_rows(tmp_path):
    digests = []
    for number, texts in enumerate((["a", "b"], ["a", "b"], ["a", "c"], ["a", "b", "b"])):
        Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / str(number))
        digests.append(open_corpus(tmp_path / str(number)).digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_digest_of_images(tmp_path):
    for number in range(3):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    digest = open_images(tmp_path).digest()
    assert open_images(tmp_path).digest() == digest
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(tmp_path / "1.png")
    assert open_images(tmp_path).digest() != digest
