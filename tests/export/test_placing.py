"""A file is there whole or not at all."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from slimformer.artifact.ownership import mark
from slimformer.artifact.storage.onnx import data_beside
from slimformer.errors import ArtifactError
from slimformer.integrations import placing
from slimformer.integrations.onnx.placing import ONNX
from slimformer.integrations.placing import check_space
from tests import runs

#: What an earlier export begins with: the version of the format, and who wrote it.
OLD = b"\x08\x0a\x12\x07pytorch"


def check_place(path, overwrite):
    return placing.check_place(path, overwrite, ONNX)


def staged(path, **options):
    return placing.staged(path, ONNX, **options)


def test_a_new_file(tmp_path):
    path = check_place(tmp_path / "deep" / "model.onnx", overwrite=False)
    assert runs.listing(tmp_path) == set()
    with staged(path) as draft:
        draft.write_bytes(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert runs.listing(tmp_path) == {"deep", "deep/model.onnx"}


def test_nothing_is_left_of_a_failure(tmp_path):
    with pytest.raises(ZeroDivisionError), staged(tmp_path / "model.onnx") as draft:
        draft.write_bytes(b"half" * (1 // 0 if draft.write_bytes(b"half") else 1))
    assert runs.listing(tmp_path) == set()


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path):
    left = tmp_path / ".model.onnx.tmp-01234567"
    left.mkdir()
    mark(left)
    (left / "model.onnx").write_bytes(b"half")
    others = tmp_path / ".model.onnx.tmp-76543210"  # a folder of that name that no export has made
    others.mkdir()
    (others / "notes.txt").write_text("mine")
    with staged(tmp_path / "model.onnx") as draft:
        draft.write_bytes(b"whole")
    assert runs.listing(tmp_path) == {"model.onnx", others.name, f"{others.name}/notes.txt"}


def test_what_is_there_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(OLD)
    with pytest.raises(ArtifactError, match=r"model.onnx` exists; choose another `--out`"):
        check_place(path, overwrite=False)
    check_place(path, overwrite=True)
    with pytest.raises(KeyError), staged(path):
        raise KeyError
    assert path.read_bytes() == OLD


def test_of_two_exports_to_one_new_file_the_second_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    second = staged(path)
    draft = second.__enter__()
    draft.write_bytes(b"second")
    data_beside(draft).write_bytes(b"of the second")
    with staged(path) as first:
        first.write_bytes(b"first")
    with pytest.raises(ArtifactError, match=r"model.onnx` exists; choose another `--out`"):
        second.__exit__(None, None, None)
    assert path.read_bytes() == b"first"
    assert runs.listing(tmp_path) == {"model.onnx"}


@pytest.mark.parametrize("data", [False, True])
def test_a_file_that_appears_at_the_last_moment_stays(data, tmp_path):
    """Between the last look at a name and the file that gets it there is nothing: the system refuses."""
    path = tmp_path / "model.onnx"
    draft = tmp_path / "draft" / "model.onnx"
    draft.parent.mkdir()
    draft.write_bytes(b"second")
    if data:
        data_beside(draft).write_bytes(b"of the second")
    path.write_bytes(b"first")
    with pytest.raises(ArtifactError, match=r"model.onnx` was written by somebody else meanwhile, so it stays"):
        placing.publish(draft, path, ONNX)
    assert path.read_bytes() == b"first"
    assert not data_beside(path).exists()


@pytest.mark.parametrize("taken", ["model.onnx", "model.onnx.data"])
def test_only_an_onnx_file_is_replaced(taken, tmp_path):
    (tmp_path / taken).write_text("mine")
    with pytest.raises(ArtifactError, match=r"is no ONNX file, so nothing is replaced"):
        check_place(tmp_path / "model.onnx", overwrite=True)


def test_nothing_is_written_into_an_artifact(tmp_path):
    (tmp_path / "slimformer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"lies in the artifact `.*`, which has to stay whole"):
        check_place(tmp_path / "model.onnx", overwrite=False)


def write_divided(path):
    """A model whose one weight lies in the file beside it."""
    weight = onnx.numpy_helper.from_array(np.ones(64, np.float32), "weight")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], [], [weight]), producer_name="test")
    onnx.save(model, path, save_as_external_data=True, location=data_beside(path).name, size_threshold=0)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_file_beside_a_model_that_holds_nothing_of_it_stays(kind, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(OLD)
    if kind == "link":
        write_divided(path)
        data_beside(path).rename(tmp_path / "weights")
        data_beside(path).symlink_to("weights")
    elif kind == "file":
        data_beside(path).write_text("mine")
    else:
        data_beside(path).mkdir()
    listing, content = runs.listing(tmp_path), path.read_bytes()
    with pytest.raises(ArtifactError, match=r"model.onnx.data` holds nothing of `model.onnx`, so it is not replaced"):
        check_place(path, overwrite=True)
    assert runs.listing(tmp_path) == listing
    assert path.read_bytes() == content


def test_a_link_to_a_model_is_not_replaced(tmp_path):
    (tmp_path / "real.onnx").write_bytes(OLD)
    (tmp_path / "model.onnx").symlink_to("real.onnx")
    with pytest.raises(ArtifactError, match=r"model.onnx` is a link"):
        check_place(tmp_path / "model.onnx", overwrite=True)


def test_data_beside_a_file_comes_and_goes_with_it(tmp_path):
    path = tmp_path / "model.onnx"
    with staged(path) as draft:
        write_divided(draft)
    assert runs.listing(tmp_path) == {"model.onnx", "model.onnx.data"}
    with staged(path, overwrite=True) as draft:
        draft.write_bytes(b"all in one")
    assert runs.listing(tmp_path) == {"model.onnx"}
    data_beside(path).write_bytes(b"of somebody else")
    path.unlink()
    with pytest.raises(ArtifactError, match=r"model.onnx.data` exists"):
        check_place(path, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_to_nothing_is_taken(overwrite, tmp_path):
    (tmp_path / "model.onnx").symlink_to(tmp_path / "nowhere.onnx")
    with pytest.raises(ArtifactError, match=r"model.onnx` (exists|is no ONNX file)"):
        check_place(tmp_path / "model.onnx", overwrite=overwrite)
    assert runs.listing(tmp_path) == {"model.onnx"}


def test_places_that_cannot_be(tmp_path):
    with pytest.raises(ArtifactError, match="is a folder; give the name of a file, such as"):
        check_place(tmp_path, overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot be written: not a directory; nothing was written"):
        check_place(tmp_path / "file" / "model.onnx", overwrite=False)
    with pytest.raises(ArtifactError, match="no space to write"):
        check_space(tmp_path / "model.onnx", 1 << 60)
    assert runs.listing(tmp_path) == {"file"}
