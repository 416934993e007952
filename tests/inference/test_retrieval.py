"""Adaptive retrieval: an index of the largest size, queries of any, files that keep it."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import transformers as hf
from safetensors.numpy import save as save_tensors

from slimformer.artifact import Step, save
from slimformer.artifact.storage.elastic import ElasticStorage
from slimformer.errors import ArtifactError, ConfigError, DataError, SizeError
from slimformer.inference.pipeline import open_pipeline
from slimformer.inference.retrieval import RECORD, VECTORS, Index, IndexRecord, embed, measure_retrieval, recall
from slimformer.inference.routing import relative_costs
from slimformer.sizes import extract, make_elastic, make_plain
from slimformer.sizes.table import SizesRecord
from slimformer.tasks.options import TaskOptions
from tests import corpus, runs, zoo

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [" ".join(corpus.WORDS[number : number + 1 + number % 5]) for number in range(16)]


def saved(folder, base, processor):
    """An elastic artifact of a model, as `slimformer elastic` saves one."""
    model = hf.AutoModel.from_pretrained(base).eval()
    zoo.enliven(model)
    record = SizesRecord.of(make_elastic(model))
    make_plain(model)
    save(folder, model, processor=processor, storage=ElasticStorage(record), step=Step(method="elastic"))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("retrieval")
    base = corpus.model_folder(folder / "base")
    corpus.data_folder(folder / "data", train=40, dev=12)
    saved(folder / "encoder", base, corpus.tokenizer())
    return folder


@pytest.fixture(scope="module")
def pipeline(encoder):
    return open_pipeline(encoder / "encoder", task="retrieval", keep_sizes=True)


def slow_search(vectors, queries, k):
    """Cosine by cosine."""
    rows = []
    for query in queries:
        cosines = [float(query @ item / np.linalg.norm(query) / np.linalg.norm(item)) for item in vectors]
        rows.append(sorted(range(len(vectors)), key=lambda number: (-cosines[number], number))[:k])
    return rows


@pytest.mark.parametrize("backend", ["numpy", "faiss"])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_the_nearest_items_are_found(backend, k):
    if backend == "faiss":
        pytest.importorskip("faiss", reason="extra `retrieval` is not installed")
    draw = np.random.default_rng(0)
    vectors, queries = draw.normal(size=(40, 8)), draw.normal(size=(300, 8))
    numbers, scores = Index(vectors, [str(number) for number in range(40)], backend=backend).search(queries, k)
    assert numbers.tolist() == slow_search(vectors, queries, k)
    assert (np.diff(scores, axis=1) <= 1e-6).all()
    assert scores[0, 0] == pytest.approx(
        queries[0] @ vectors[numbers[0, 0]] / np.linalg.norm(queries[0]) / np.linalg.norm(vectors[numbers[0, 0]]),
        abs=1e-6,
    )


def test_of_equal_items_the_first_comes_first():
    index = Index([[1, 0], [2, 0], [0, 1]], ["a", "b", "c"])
    assert index.search([[3, 0]], 3)[0].tolist() == [[0, 1, 2]]
    assert index.search([[3, 0]], 9)[0].shape == (1, 3)


def test_queries_with_nested_outputs_are_compared_with_the_first_dimensions():
    draw = np.random.default_rng(1)
    vectors, queries = draw.normal(size=(20, 8)), draw.normal(size=(5, 3))
    numbers, _ = Index(vectors, [str(number) for number in range(20)]).search(queries, 4)
    assert numbers.tolist() == slow_search(vectors[:, :3], queries, 4)


def test_queries_of_any_size_search_what_the_largest_embedded(encoder, pipeline):
    index = Index.of(pipeline, TEXTS)
    for size in ("S", "M", "XL", "S,XL"):
        vectors = embed(open_pipeline(encoder / "encoder", task="retrieval", size=size), TEXTS[:3])
        assert embed(pipeline.at(size), TEXTS[:3]) == pytest.approx(vectors, abs=1e-5)
        hits = index.find(pipeline.at(size), TEXTS[:3], k=4)
        expected = slow_search(index.vectors, vectors, 4)
        assert [[hit.number for hit in row] for row in hits] == expected
        assert [[hit.name for hit in row] for row in hits] == [[TEXTS[number] for number in row] for row in expected]
    assert [row[0].name for row in index.find(pipeline, TEXTS, k=1)] == TEXTS
    assert index.find(pipeline, []) == []


def test_threads_search_at_different_sizes(pipeline):
    index = Index.of(pipeline, TEXTS)
    sizes = [pipeline.at(size) for size in ("S", "M", "L", "XL")]
    alone = [repr(index.find(each, TEXTS[:5], k=6)) for each in sizes]
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda turn: repr(index.find(sizes[turn % 4], TEXTS[:5], k=6)), range(40))) == alone * 10


def test_an_index_is_kept_and_refused_once_it_was_changed(encoder, pipeline, tmp_path):
    index = Index.of(pipeline, TEXTS, names=[f"text {number}" for number in range(16)])
    index.save(tmp_path / "index")
    again = Index.load(tmp_path / "index")
    assert np.array_equal(again.vectors, index.vectors)
    assert (again.names, again.fingerprint) == (index.names, index.fingerprint)
    assert index.fingerprint is not None
    assert again.find(pipeline, TEXTS[:1], k=1)[0][0].name == "text 0"
    with pytest.raises(ArtifactError, match="exists"):
        index.save(tmp_path / "index")
    other = saved(tmp_path / "other", encoder / "base", corpus.tokenizer())
    with pytest.raises(ArtifactError, match="other weights"):
        again.find(open_pipeline(other, task="retrieval"), TEXTS)
    record = json.loads((tmp_path / "index" / "index.json").read_text())
    for change in ({"names": ["a"]}, {"width": 3}, {"sha256": "0" * 64}, {"more": 1}, {"names": []}):
        (tmp_path / "index" / "index.json").write_text(json.dumps({**record, **change}))
        with pytest.raises(ArtifactError, match="is no index"):
            Index.load(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text(json.dumps(record))
    (tmp_path / "index" / "vectors.safetensors").write_bytes(b"no vectors")
    with pytest.raises(ArtifactError, match="not what was saved"):
        Index.load(tmp_path / "index")
    with pytest.raises(ArtifactError, match="no index at"):
        Index.load(tmp_path / "nowhere")


def test_what_cannot_be_searched_is_refused(encoder, pipeline):
    with pytest.raises(DataError, match="do not go with 1 names"):
        Index([[1, 2], [3, 4]], ["a"])
    with pytest.raises(DataError, match="not finite"):
        Index([[1, float("nan")]], ["a"])
    with pytest.raises(ConfigError, match="no index `annoy`"):
        Index([[1, 2]], ["a"], backend="annoy")
    with pytest.raises(DataError, match="do not go with vectors of 2"):
        Index([[1, 2]], ["a"]).search([[1, 2, 3]])
    with pytest.raises(DataError, match="do not go with vectors of 2"):
        Index([[1, 2]], ["a"]).search([1, 2])
    with pytest.raises(ConfigError, match="`k` is `0`"):
        Index([[1, 2]], ["a"]).search([[1, 2]], 0)
    with pytest.raises(DataError, match="nothing to embed"):
        Index.of(pipeline, [])
    with pytest.raises(SizeError, match="kept none"):
        open_pipeline(encoder / "encoder", task="retrieval", size="S").at("S")


@pytest.mark.parametrize(
    ("vectors", "names", "message"),
    [
        ([[1.0, 2.0], [3.0]], ["a", "b"], "are no table of numbers"),
        ([["a", "b"]], ["a"], "are no table of numbers"),
        ([[1.0, 2.0]], [1], "an item is called `1`; give a text"),
    ],
)
def test_what_cannot_be_indexed_is_refused(vectors, names, message):
    with pytest.raises(DataError, match=message):
        Index(vectors, names)


@pytest.mark.parametrize(
    ("queries", "k", "error", "message"),
    [
        ("film", 1, DataError, "`film` are no table of numbers"),
        ([[float("nan"), 1.0]], 1, DataError, "not finite"),
        ([[0.0, 1.0]], "3", ConfigError, "`k` is `3`; ask for 1 or more"),
    ],
)
def test_what_is_no_query_is_refused(queries, k, error, message):
    with pytest.raises(error, match=message):
        Index([[1.0, 2.0]], ["a"]).search(queries, k)


def test_a_name_is_no_pipeline():
    with pytest.raises(ConfigError, match="`encoder` is no pipeline; open it with `open_pipeline`"):
        Index.of("encoder", ["a film"])


def test_recall_is_the_share_of_neighbours_found():
    assert recall(np.array([[1, 2], [3, 4]]), np.array([[2, 9], [4, 3]])) == 0.75


def test_every_size_is_measured_as_by_hand(encoder):
    options = TaskOptions.make({"task": "retrieval", "data": str(encoder / "data")})
    measured = measure_retrieval(encoder / "encoder", options, k=3)
    assert list(measured) == ["S", "M", "L", "XL"]
    rows = {
        split: [line.split("\t") for line in (encoder / "data" / f"{split}.tsv").read_text().splitlines()[1:]]
        for split in ("train", "dev")
    }
    vectors = {
        (size, split): embed(
            open_pipeline(encoder / "encoder", task="retrieval", size=size), [text for text, _ in rows[split]]
        )
        for size in ("S", "XL")
        for split in rows
    }
    best = slow_search(vectors["XL", "train"], vectors["XL", "dev"], 3)
    for side, key in (("XL", "one_nearest_neighbour"), ("S", "same_size")):
        nearest = slow_search(vectors[side, "train"], vectors["S", "dev"], 1)
        right = [rows["train"][row[0]][1] == label for row, (_, label) in zip(nearest, rows["dev"], strict=True)]
        assert measured["S"][key] == pytest.approx(np.mean(right))
    nearest = slow_search(vectors["XL", "train"], vectors["S", "dev"], 3)
    shares = [len(set(one) & set(other)) / 3 for one, other in zip(best, nearest, strict=True)]
    assert measured["S"]["recall@3"] == pytest.approx(np.mean(shares))
    assert measured["XL"]["recall@3"] == 1
    assert measured["XL"]["one_nearest_neighbour"] == measured["XL"]["same_size"]
    assert measured["S"]["compute"] < measured["M"]["compute"] < measured["XL"]["compute"] == 1


def test_images_are_searched_alike(tmp_path):
    from PIL import Image

    base = runs.viewer(tmp_path / "base")
    saved(tmp_path / "encoder", base, hf.AutoImageProcessor.from_pretrained(base))
    paths = []
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (28, 28, 3), dtype=np.uint8)
        folder = tmp_path / "data" / ("train" if number < 4 else "dev") / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        paths.append(str(folder / f"{number}.png"))
    pipeline = open_pipeline(tmp_path / "encoder", task="image-retrieval", keep_sizes=True)
    index = Index.of(pipeline, paths)
    assert [row[0].name for row in index.find(pipeline, paths, k=1)] == paths
    options = TaskOptions.make({"task": "image-retrieval", "data": str(tmp_path / "data")})
    measured = measure_retrieval(tmp_path / "encoder", options, k=2, pooling="cls")
    assert measured["XL"]["recall@2"] == 1
    model = hf.AutoModel.from_pretrained(base)
    make_elastic(model)
    assert measured["S"]["compute"] == pytest.approx(relative_costs(model, 17)[0])
    assert extract(model, "S").config.intermediate_size == 8


def forged(folder, content):
    """An index whose record fits whatever the file of vectors holds."""
    folder.mkdir()
    (folder / VECTORS).write_bytes(content)
    record = IndexRecord(width=4, names=["a", "b"], sha256=hashlib.sha256(content).hexdigest())
    (folder / RECORD).write_text(record.model_dump_json())
    return folder


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.int8])
def test_vectors_of_another_type_are_refused(dtype, tmp_path):
    with pytest.raises(ArtifactError, match="not float32"):
        Index.load(forged(tmp_path / "index", save_tensors({"vectors": np.full((2, 4), 9, dtype)})))


def test_vectors_of_a_type_that_numpy_does_not_have_are_refused(tmp_path):
    header = json.dumps({"vectors": {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 16]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    with pytest.raises(ArtifactError, match="no vectors in float32"):
        Index.load(forged(tmp_path / "index", content))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_vectors_that_never_end_are_refused(kind, tmp_path):
    folder = forged(tmp_path / "index", b"")
    (folder / VECTORS).unlink()
    if kind == "pipe":
        os.mkfifo(folder / VECTORS)
    else:
        (folder / VECTORS).symlink_to("/dev/zero")
    with pytest.raises(ArtifactError, match=f"it is a {kind}, not a file"):
        Index.load(folder)
