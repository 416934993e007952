"""Rounded activations on another machine: a last bit turns a value to the next step, and no sound artifact is refused.

Other machines are simulated by what differs between them: the last bits of products of matrices, by noise on them, by
another order of summation, or by computing in float64.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.modules.module import register_module_forward_hook

from slimformer.artifact import load, save, verify
from slimformer.artifact.loading import Loaded, check_recorded
from slimformer.errors import ArtifactError
from slimformer.views import rounding_of
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.forging import edit, resum
from tests.artifact.storage.test_packed import quantized


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    """A model deep and wide enough for some value to lie next to a step's edge."""
    folder = tmp_path_factory.mktemp("rounded") / "out"
    model = tiny_bert(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4)
    save(folder, quantized(model, weights="8"), processor=tiny_tokenizer(), step=STEP)
    return folder


@pytest.fixture
def copied(rounded, tmp_path):
    return shutil.copytree(rounded, tmp_path / "out")


def noisy(scale, generator):
    def change(module, args, output):
        if isinstance(module, torch.nn.Linear):
            return output * (1 + scale * (2 * torch.rand(output.shape, generator=generator) - 1))
        return None

    return change


def read_by(module, args):
    """What a matrix multiplies; some round it themselves."""
    rounding = getattr(module, "input_rounding", None)
    return args[0] if rounding is None else rounding(args[0])


def summed_backwards(module, args, output):
    if isinstance(module, torch.nn.Linear):
        return torch.nn.functional.linear(read_by(module, args).flip(-1), module.weight.flip(-1), module.bias)
    return None


def summed_in_double(module, args, output):
    if isinstance(module, torch.nn.Linear):
        bias = None if module.bias is None else module.bias.double()
        return torch.nn.functional.linear(read_by(module, args).double(), module.weight.double(), bias).float()
    return None


MACHINES = {
    **{f"last bits {seed}": noisy(5e-7, torch.Generator().manual_seed(seed)) for seed in range(4)},
    "backwards": summed_backwards,
    "double": summed_in_double,
}


@contextmanager
def another(machine):
    handle = register_module_forward_hook(machine)
    try:
        yield
    finally:
        handle.remove()


def test_sound_artifacts_are_accepted_on_other_machines(rounded):
    apart = []
    for machine in MACHINES.values():
        with another(machine):
            apart.append(verify(rounded).max_difference)
    # Some machine has turned a value, or this test would tell nothing.
    assert max(apart) > 1e-3
    assert verify(rounded).max_difference < 1e-5


def test_what_rounding_changes_is_not_taken_for_a_change_of_weights(rounded):
    loaded = load(rounded)
    assert rounding_of(loaded.model) is not None
    assert check_recorded(rounded, Loaded(loaded.model.double(), loaded.processor, loaded.manifest), 4) < 0.2


@pytest.mark.parametrize("machine", ["none", *list(MACHINES)[:2], "double"])
@pytest.mark.parametrize("factor", [1.01, 1.3])
def test_changed_weights_are_seen_on_every_machine(copied, machine, factor):
    path = copied / "packed.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "layer.2" in name and name.endswith("_scales"))
    save_file({**tensors, name: tensors[name] * factor}, path, metadata={"format": "pt"})
    resum(copied)
    with another(MACHINES.get(machine, lambda *_: None)), pytest.raises(ArtifactError, match="outputs recorded"):
        load(copied)


@pytest.mark.parametrize("change", [{"bits": 9}, {"bits": 7}, {"per": "head"}, {"symmetric": False}])
def test_another_rounding_is_seen(copied, change):
    config = json.loads((copied / "config.json").read_text())["quantization_config"]
    edit(copied / "config.json", quantization_config={**config, "activations": {**config["activations"], **change}})
    resum(copied)
    with pytest.raises(ArtifactError, match="activations are rounded by"):
        verify(copied)


def test_what_was_recorded_with_rounding_alone_is_compared_strictly_and_says_so(copied):
    probe = json.loads((copied / "probe.json").read_text())
    del probe["unrounded"], probe["rounding"]
    (copied / "probe.json").write_text(json.dumps(probe))
    resum(copied)
    verify(copied)
    with another(noisy(1e-4, torch.Generator().manual_seed(0))), pytest.raises(ArtifactError, match="`--no-check`"):
        verify(copied)


def test_a_model_that_rounds_nothing_records_nothing_more(saved):
    assert json.loads((saved / "probe.json").read_text()).keys() == {"inputs", "outputs", "reading"}
