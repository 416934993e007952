"""Tables of sizes are read without torch, and mean what they mean in a model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slimformer.errors import ArtifactError, SizeError
from slimformer.sizes import make_elastic, name_sizes
from slimformer.sizes.table import PUBLISHED, SIZES, SizesRecord, read_naming
from tests import zoo

BLOCKS = zoo.WIDTH["num_hidden_layers"]


@pytest.fixture
def folder(tmp_path):
    elastic = make_elastic(zoo.build("llama"), name_sizes((0.25, 0.5, 1), depth=(0.4, 1, 1)))
    (tmp_path / SIZES).write_text(SizesRecord.of(elastic).to_json())
    (tmp_path / PUBLISHED).write_text(json.dumps({"published": [{"name": "phone", "allocation": "S,0,XL"}]}))
    return tmp_path, elastic


@pytest.mark.parametrize("size", ["S", "m", 0.5, "0.25", "S,0,XL", ["M", 1.0, 0], "phone"])
def test_names_mean_what_they_mean_in_the_model(folder, size):
    path, elastic = folder
    naming = read_naming(path, BLOCKS)
    assert naming.names == elastic.names
    assert naming.largest == elastic.largest
    asked = "S,0,XL" if size == "phone" else size
    assert naming.allocation(size) == elastic.allocation(asked)


@pytest.mark.parametrize("size", ["XXL", "S,S", 0.3, "0,0,0", "tablet"])
def test_what_means_nothing_is_refused_alike(folder, size):
    path, elastic = folder
    naming = read_naming(path, BLOCKS)
    elastic.published.update(naming.published)
    messages = []
    for each in (naming, elastic):
        with pytest.raises(SizeError) as error:
            each.allocation(size)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_tables_that_do_not_fit_are_refused(folder):
    path, _ = folder
    with pytest.raises(ArtifactError, match=rf"{PUBLISHED}` does not fit the model: the allocation names 3 blocks"):
        read_naming(path, 4)
    (path / SIZES).write_text('{"sizes": [{"name": "S", "neurons": 0.5}, {"name": "M", "neurons": 0.4}]}')
    with pytest.raises(ArtifactError, match=rf"{SIZES}` does not fit the model: `neurons` is 0.5, 0.4"):
        read_naming(path, BLOCKS)
    (path / SIZES).unlink()
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_naming(path, BLOCKS)


def test_torch_is_not_imported():
    code = """
import sys
import slimformer.sizes.table, slimformer.sizes.decoding.length
from slimformer.sizes import Draft, Size, frequent_tokens, name_sizes
assert not {"torch", "transformers"} & set(sys.modules), "imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
