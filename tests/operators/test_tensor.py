"""A packed weight as torch and Transformers handle a parameter: what is saved is what is held, and nothing is lost."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import transformers as hf

from slimformer.errors import FormatError
from slimformer.operators import PackedTensor, coverage, expand
from slimformer.runtime.native import is_built
from slimformer.views import packed_weights
from tests import zoo
from tests.operators.test_linear import held
from tests.operators.test_models import loaded, outputs

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
IN_PLACE = r"slimformer\.operators\.expand\(model\)"


def language_model(seed, folder, **settings):
    """Its head is tied to its table of words."""
    torch.manual_seed(seed)
    return loaded(zoo.enliven(hf.BertForMaskedLM(zoo.CONFIGS["bert"]())).eval(), folder, **settings)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of one kind, packed alike."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
    for seed, folder in enumerate(folders):
        language_model(seed, folder)
    return folders


@pytest.fixture
def models(folders):
    return [hf.BertForMaskedLM.from_pretrained(folder).eval() for folder in folders]


def word_weight(model):
    return model.bert.embeddings.word_embeddings.weight


def answer(model):
    return outputs(model, zoo.inputs_for("bert"))[0]


def assert_saved_as_held(model, expected, folder):
    assert torch.equal(answer(model), expected)
    model.save_pretrained(folder)
    again = type(model).from_pretrained(folder).eval()
    assert not coverage(again).expanded
    assert torch.equal(answer(again), expected)
    return again


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_that_was_loaded_is_the_one_that_is_saved(models, assign, tmp_path):
    one, other = models
    expected = answer(other)
    assert not torch.equal(answer(one), expected)
    one.load_state_dict(other.state_dict(), assign=assign)
    assert_saved_as_held(one, expected, tmp_path / "packed")
    # Its floats, too, go by what was loaded.
    copied = expand(copy.deepcopy(one))
    copied.save_pretrained(tmp_path / "expanded")
    again = type(one).from_pretrained(tmp_path / "expanded").eval()
    assert torch.equal(answer(again), expected)


def test_a_parameter_that_was_put_in_another_place_is_the_one_that_is_saved(models, tmp_path):
    one, _ = models
    layers = [model.bert.encoder.layer[0].output.dense for model in models]
    layers[0].weight = torch.nn.Parameter(layers[1].weight.clone(), requires_grad=False)
    expected = answer(one)
    again = assert_saved_as_held(one, expected, tmp_path)
    weight = again.bert.encoder.layer[0].output.dense.weight
    assert torch.equal(weight.dequantize(), layers[1].weight.dequantize())


@pytest.mark.parametrize("granularity", ["matrix", "row", "group"])
def test_scales_are_saved_in_the_shape_they_were_read_in(granularity, tmp_path):
    settings = {"granularity": granularity} | ({"group_size": 16} if granularity == "group" else {})
    model = language_model(0, tmp_path / "one", **settings)
    assert not coverage(model).expanded
    model.save_pretrained(tmp_path / "two")
    one, two = ((tmp_path / name / "packed.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_weight_that_is_packed_otherwise_is_not_saved_as_the_one_before(models, tmp_path):
    one, other = models[0], language_model(1, tmp_path / "int4", weights="int4")
    one.load_state_dict(other.state_dict(), assign=True)
    with pytest.raises(FormatError, match="another way"):
        one.save_pretrained(tmp_path / "out")
    with pytest.raises(RuntimeError, match=IN_PLACE):  # torch tells of all weights in one error of its own
        models[1].load_state_dict(other.state_dict())
    expand(one)  # is still a way out
    assert torch.equal(word_weight(one), word_weight(other).dequantize())


def test_nothing_is_written_without_a_word(models):
    weight = word_weight(models[0])
    before = weight.dequantize()
    floats = torch.zeros(weight.shape)

    def set_data():
        weight.data = floats

    def set_item():
        weight[0] = 1.0

    writes = {
        "data": set_data,
        "item": set_item,
        "mul_": lambda: weight.mul_(2),
        "out": lambda: torch.add(floats, 1, out=weight),
        "foreach": lambda: torch._foreach_add_([weight], [floats + 1]),
        "foreach after another": lambda: torch._foreach_mul_([floats.clone(), weight], 2.0),
    }
    for write in writes.values():
        with torch.no_grad(), pytest.raises(FormatError, match=IN_PLACE):
            write()
    assert torch.equal(weight.dequantize(), before)
    # What is read is not written.
    assert torch.equal(torch.add(weight, 1, out=torch.empty(weight.shape)), before + 1)
    others = [floats.clone()]
    torch._foreach_add_(others, [weight])
    assert torch.equal(others[0], before)


@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_an_optimizer_that_would_change_nothing_says_so(models, kind):
    model = models[0]
    weight = word_weight(model).requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=0.1, **{kind: True})
    weight.grad = torch.ones(weight.shape)
    with pytest.raises(FormatError, match=IN_PLACE):
        optimizer.step()


def test_data_is_the_weight_without_a_gradient(models):
    weight = word_weight(models[0])
    assert isinstance(weight.data, PackedTensor)
    assert weight.data.panels is weight.panels
    assert not weight.data.requires_grad


def test_a_table_of_words_is_resized_in_floats(models):
    one, other = models
    size, before = one.config.vocab_size, answer(one)
    with pytest.raises(FormatError, match=IN_PLACE):
        one.resize_token_embeddings(size + 3)
    assert torch.equal(answer(one), before)
    expected = word_weight(other).dequantize()
    expand(other).resize_token_embeddings(size + 3)
    assert torch.equal(word_weight(other)[:size], expected)
    assert answer(other).shape[-1] == size + 3


def test_a_model_is_moved_and_tied_as_before(models):
    one, _ = models
    expected = answer(one)
    one.tie_weights()
    assert one.cls.predictions.decoder.weight is word_weight(one)
    halves = copy.deepcopy(one).to(torch.float16)
    assert not coverage(halves).expanded
    assert answer(halves).dtype == torch.float16
    assert halves.cls.predictions.decoder.weight is word_weight(halves)
    assert packed_weights(halves).keys() == packed_weights(one).keys()
    assert word_weight(copy.deepcopy(one).to("meta")).is_meta
    assert torch.equal(answer(one), expected)


def test_memory_is_shared_with_other_processes(models):
    one, _ = models
    expected = answer(one)
    assert not word_weight(one).is_shared()
    assert one.share_memory() is one
    weight = word_weight(one)
    assert weight.is_shared()
    assert weight.panels.is_shared()
    assert weight.share_memory_() is weight
    assert torch.equal(answer(one), expected)


def reread(tensor, place):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file, map_location=place)


def test_a_state_is_loaded_to_the_device_that_is_asked_for():
    _, _, tensor = held(("int4", 24, 48, 16, False, False))
    # As one of another device has it, that was read where there is none.
    elsewhere = PackedTensor(tensor.panels, tensor.scales, tensor.form, tensor.dtype, tensor.dequantize())
    again = reread(elsewhere, "cpu")
    assert again.expanded is None
    assert torch.equal(again.dequantize(), tensor.dequantize())
    parameter = torch.nn.Parameter(tensor, requires_grad=False)
    shape = reread(parameter, "meta")
    assert shape.is_meta
    assert shape.shape == tensor.shape
    assert isinstance(shape, torch.nn.Parameter)
    if torch.cuda.is_available():
        there = reread(tensor, "cuda")
        assert there.panels.device.type == "cpu"
        assert torch.equal(there.dequantize().cpu(), tensor.dequantize())
        assert torch.equal((there + 0).cpu(), tensor.dequantize())
