"""`slimformer.json` survives the round trip, and nothing else passes for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.artifact import Base, FileSum, Manifest, ModelRecord, Step, TaskRecord, read_manifest
from slimformer.artifact.manifest import FORMAT
from slimformer.errors import ArtifactError
from tests.artifact.forging import edit, sign, signed

if TYPE_CHECKING:
    from pathlib import Path

words = st.text(min_size=1, max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
sums = st.text("0123456789abcdef", min_size=64, max_size=64)
bases = st.none() | st.builds(Base, name=words, fingerprint=st.none() | sums)
steps = st.builds(
    Step,
    method=words,
    config=st.dictionaries(words, values, max_size=3),
    seed=st.none() | st.integers(),
    versions=st.dictionaries(words, words, max_size=2),
    duration_s=st.none() | st.floats(0, 1e6),
    command=st.none() | words,
    base=bases,
)
files = st.dictionaries(
    st.text("abc.-_é ", min_size=1, max_size=8).filter(lambda name: set(name) != {"."}),
    st.builds(FileSum, sha256=sums, bytes=st.integers(0, 2**60)),
    max_size=3,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    chain = draw(st.lists(steps, min_size=1, max_size=3))
    return Manifest(
        model=draw(
            st.builds(ModelRecord, architecture=words, parameters=st.integers(0), dtype=words, fingerprint=sums)
        ),
        base=chain[-1].base,
        steps=chain,
        task=draw(st.none() | st.builds(TaskRecord, name=words, kind=words, labels=st.none() | st.lists(words))),
        metrics=draw(st.dictionaries(words, st.dictionaries(words, numbers, max_size=2), max_size=2)),
        files=draw(files),
    )


@settings(max_examples=100, deadline=None)
@given(manifests())
def test_a_manifest_of_format_1_is_read(manifest: Manifest) -> None:
    content = {**manifest.model_dump(mode="json"), "format": 1}
    again = Manifest.from_bytes(signed(content))
    assert again.model_copy(update={"format": FORMAT}) == manifest


@settings(max_examples=100, deadline=None)
@given(manifests())
def test_round_trip(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    again = Manifest.from_bytes(data)
    assert again == manifest
    assert again.to_bytes() == data


@settings(max_examples=100, deadline=None)
@given(manifests(), st.data())
def test_any_other_byte_is_refused(manifest: Manifest, data: st.DataObject) -> None:
    whole = bytearray(manifest.to_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ArtifactError):
        Manifest.from_bytes(bytes(whole))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        Manifest.from_bytes(data)


def test_newer_format_says_to_update(artifact: Path) -> None:
    sign(artifact, format=3, something_new={"a": 1})
    with pytest.raises(ArtifactError, match=r"is of format 3, and this slimformer reads up to format 2; update slim"):
        read_manifest(artifact)


def test_defaults_are_not_written_so_that_new_fields_change_no_file(artifact: Path) -> None:
    class Grown(Manifest):
        """A later version of the format with one more field."""

        colour: str = "none"

    data = (artifact / "slimformer.json").read_bytes()
    content = json.loads(data)
    assert {"base", "task"} & content.keys() == {"task"}
    assert "command" not in content["steps"][0]
    grown = Grown.from_bytes(data)
    assert grown.colour == "none"
    assert grown.to_bytes() == data


def test_format_1_wrote_every_field_and_is_read(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    content = manifest.model_dump(mode="json")
    del content["model"]["packed"]  # was left out where there was nothing
    sign(artifact, **{**content, "format": 1})
    again = read_manifest(artifact)
    assert again.format == 1
    assert again.model_copy(update={"format": 2}) == manifest


@pytest.mark.parametrize("value", [0, -1, True, "1", 1.0, None, [1]])
def test_format_that_is_no_version(artifact: Path, value: object) -> None:
    sign(artifact, format=value)
    with pytest.raises(ArtifactError, match="which is no version"):
        read_manifest(artifact)


def test_unknown_key_is_named(artifact: Path) -> None:
    sign(artifact, colour="red")
    with pytest.raises(ArtifactError, match="unknown key `colour`"):
        read_manifest(artifact)


def test_unknown_key_deeper_down_is_named(artifact: Path) -> None:
    content = json.loads((artifact / "slimformer.json").read_bytes())
    sign(artifact, steps=[{**content["steps"][0], "colour": "red"}])
    with pytest.raises(ArtifactError, match=r"unknown key `steps\.0\.colour`"):
        read_manifest(artifact)


def test_missing_key_is_named(artifact: Path) -> None:
    sign(artifact, model={"architecture": "BertModel", "parameters": 1, "dtype": "float32"})
    with pytest.raises(ArtifactError, match=r"lacks the key `model\.fingerprint`"):
        read_manifest(artifact)


@pytest.mark.parametrize("name", ["../x.json", "/etc/passwd", "a/../../x.json", "a\\b.json", "", "./a.json", "a//b"])
def test_file_outside_the_folder_is_refused(artifact: Path, name: str) -> None:
    sign(artifact, files={name: {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(ArtifactError, match="is not a file inside the folder"):
        read_manifest(artifact)


def test_base_must_be_that_of_the_last_step(artifact: Path) -> None:
    sign(artifact, base={"name": "other", "fingerprint": None})
    with pytest.raises(ArtifactError, match="`base` is not the base of the last step"):
        read_manifest(artifact)


@pytest.mark.parametrize("metrics", [{"dev": {"accuracy": 1}}, {"dev": {"accuracy": "0.5"}}])
def test_value_of_another_type_is_a_change(artifact: Path, metrics: dict[str, object]) -> None:
    sign(artifact, metrics=metrics)
    with pytest.raises(ArtifactError, match="was changed after it was written"):
        read_manifest(artifact)


def test_edit_by_hand_is_found(artifact: Path) -> None:
    edit(artifact / "slimformer.json", metrics={"sst2/dev": {"accuracy": 0.99}})
    with pytest.raises(ArtifactError, match="was changed after it was written"):
        read_manifest(artifact)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"\xff\xfe", b'{"format": 1', b'{"format": ' + b"9" * 5000 + b"}", b"[" * 100_000],
)
def test_not_json(artifact: Path, data: bytes) -> None:
    (artifact / "slimformer.json").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"slimformer\.json"):
        read_manifest(artifact)


def test_file_beyond_any_manifest_is_not_read(artifact: Path) -> None:
    with (artifact / "slimformer.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ArtifactError, match="more than any manifest"):
        read_manifest(artifact)
