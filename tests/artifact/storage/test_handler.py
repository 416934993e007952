"""A way of storing that is registered outside the package is written, recognised, read, verified and shown."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import slimformer
from slimformer.artifact import Step, save, verify
from slimformer.artifact.storage.handler import Storage, storage_of
from slimformer.artifact.storage.plain import PlainStorage
from slimformer.errors import ArtifactError
from slimformer.inference.door import look_up, open_model
from slimformer.registry import STORAGE
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer


class Negated(PlainStorage):
    """Stores every weight with its sign turned, in a file of another name."""

    name = "negated"
    weights = ("negated.safetensors",)

    def write(self, stage, model, processor, base):
        super().write(stage, model, processor, base)
        plain = stage / "model.safetensors"
        save_file({name: -each for name, each in load_file(plain).items()}, stage / self.weights[0])
        plain.unlink()

    def read(self, folder, loader, *, dtype, base, cast_base=False):
        model = loader[0](slimformer.models.load_config(folder))
        model.load_state_dict({name: -each for name, each in load_file(folder / self.weights[0]).items()})
        return model.eval()

    def card(self, manifest):
        return "Turn every sign before use."


@pytest.fixture
def negated():
    STORAGE.add("negated", Negated, "Signs turned.")
    yield
    STORAGE.remove("negated")


def test_a_storage_from_outside_goes_the_whole_way(negated, tmp_path):
    model = tiny_bert()
    manifest = save(tmp_path / "out", model, processor=tiny_tokenizer(), step=STEP, storage="negated")
    assert manifest.model.storage == "negated"
    assert "Turn every sign" in (tmp_path / "out" / "README.md").read_text()
    assert isinstance(storage_of(tmp_path / "out"), Negated)
    assert look_up(tmp_path / "out").storage == "negated"
    assert verify(tmp_path / "out").max_difference < 1e-5
    loaded = open_model(tmp_path / "out").model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_without_its_package_such_a_folder_is_refused(tmp_path):
    STORAGE.add("negated", Negated)
    save(tmp_path / "out", tiny_bert(), step=STEP, storage="negated")
    STORAGE.remove("negated")
    with pytest.raises(ArtifactError, match="stores its weights as `negated`, which is not known here"):
        slimformer.load(tmp_path / "out")


class Doubled(PlainStorage):
    """Stores twice of every weight, under the name of plain ones."""

    name = "doubled"

    def write(self, stage, model, processor, base):
        super().write(stage, model, processor, base)
        path = stage / self.weights[0]
        save_file({name: 2 * each for name, each in load_file(path).items()}, path, metadata={"format": "pt"})

    def read(self, folder, loader, *, dtype, base, cast_base=False):
        model = super().read(folder, loader, dtype=dtype, base=base, cast_base=cast_base)
        for tensor in model.state_dict().values():
            tensor.div_(2)
        return model


def test_the_manifest_says_how_weights_lie_that_look_plain(tmp_path):
    save(tmp_path / "plain", tiny_bert(), processor=tiny_tokenizer(), step=STEP)
    STORAGE.add("doubled", Doubled)
    try:
        save(tmp_path / "out", tiny_bert(), processor=tiny_tokenizer(), step=STEP, storage="doubled")
        assert isinstance(storage_of(tmp_path / "out"), Doubled)
        assert type(storage_of(tmp_path / "plain")) is PlainStorage
        verify(tmp_path / "out")
        for folder in ("out", "plain"):
            weights = slimformer.load(tmp_path / folder).model.state_dict()
            for name, tensor in tiny_bert().state_dict().items():
                assert torch.equal(tensor, weights[name])
    finally:
        STORAGE.remove("doubled")


def test_a_mask_needs_its_base(tmp_path):
    with pytest.raises(ArtifactError, match="a mask needs the base it was made from"):
        save(tmp_path / "out", tiny_bert(), step=Step(method="mask"), storage="mask")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", STORAGE.names)
def test_every_storage_says_what_it_is(name):
    handler = STORAGE.get(name)()
    assert isinstance(handler, Storage)
    assert handler.name == name
    assert STORAGE.help(name).endswith(".")
