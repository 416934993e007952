from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from slimformer import Anatomy, models
from slimformer.anatomy import Part, known
from slimformer.errors import AnatomyError, UnknownFamilyError
from tests import zoo


def test_every_family_of_the_design_is_known_and_tested():
    assert known() == tuple(sorted([*zoo.FAMILIES, "gemma3n_text"]))


@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("build", [zoo.build, zoo.build_headed])
def test_parts_have_the_shapes_of_the_config(family, build):
    anatomy = Anatomy.of(build(family))
    assert (len(anatomy.blocks), anatomy.hidden, anatomy.family.name) == (3, 48, family)
    width = 16 if family in ("qwen3", "gemma") else 12
    key_value_heads = {"llama": 2, "qwen2": 2, "qwen3": 2, "gemma": 1}.get(family, 4)
    for block in anatomy.blocks:
        assert (block.heads, block.head_width, block.key_value_heads) == (4, width, key_value_heads)
        assert block.ffn_width == 64
        shapes = {role: matrix.shape for role, matrix in block.matrices.items()}
        assert shapes == {
            "query": (4 * width, 48),
            "key": (key_value_heads * width, 48),
            "value": (key_value_heads * width, 48),
            "output": (48, 4 * width),
            "up": (64, 48),
            **({"gate": (64, 48)} if family in zoo.GATED else {}),
            "down": (48, 64),
        }
        assert "norm" in type(block.ffn_norm).__name__.lower()
    if family in zoo.IMAGES:
        assert anatomy.word_embedding is None
        assert isinstance(anatomy.patch_embedding, nn.Conv2d)
    else:
        assert anatomy.word_embedding.shape == (99, 24 if family == "electra" else 48)
        assert anatomy.patch_embedding is None
    assert (anatomy.final_norm is not None) == anatomy.family.pre_norm


@pytest.mark.parametrize(
    ("family", "head", "pooled"),
    [
        ("bert", {"classifier"}, True),
        ("roberta", {"classifier"}, False),
        ("xlm-roberta", {"lm_head"}, False),
        ("distilbert", {"qa_outputs"}, False),
        ("deberta-v2", {"classifier"}, True),
        ("mpnet", {"classifier"}, True),
        ("deit", {"cls_classifier", "distillation_classifier"}, False),
        ("vit_mae", {"decoder"}, False),
        ("gpt2", {"lm_head"}, False),
        ("qwen2", {"score"}, False),
    ],
)
def test_head_and_pooler(family, head, pooled):
    anatomy = Anatomy.of(zoo.build_headed(family))
    assert set(anatomy.head) == head
    assert (anatomy.pooler is not None) == pooled
    assert Anatomy.of(zoo.build(family)).head == {}


def test_t5_with_a_gate():
    """As T5 1.1 and FLAN-T5 have it; the config says which of the two a checkpoint is."""
    gated = hf.T5Config(**zoo.CONFIGS["t5"].keywords, feed_forward_proj="gated-gelu")
    torch.manual_seed(0)
    model = zoo.enliven(hf.T5EncoderModel(gated)).eval()
    anatomy, inputs = Anatomy.of(model), zoo.inputs_for("t5")
    assert anatomy.blocks[0].gate.shape == anatomy.blocks[0].up.shape == (64, 48)
    assert Anatomy.of(zoo.build("t5")).blocks[0].gate is None
    with torch.no_grad():
        before = model(**inputs)[0]
        for block in anatomy.blocks:
            block.keep_neurons(torch.randperm(64).tolist())
        torch.testing.assert_close(model(**inputs)[0], before, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("head", [hf.T5Model, hf.T5ForConditionalGeneration, hf.T5ForSequenceClassification])
def test_of_t5_only_encoders_are_known(head):
    with pytest.raises(AnatomyError, match=r"has a `decoder`, and of family `t5` only encoders are known"):
        Anatomy.of(head(zoo.CONFIGS["t5"]()))


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_matrices_are_what_the_forward_multiplies_by(family):
    """Recompute each projection from `weight` and `bias` and compare with the module's own output."""
    block = Anatomy.of(zoo.build(family)).blocks[1]
    for matrix in block.matrices.values():
        x = torch.randn(2, 5, matrix.shape[1])
        own = matrix.module(x)
        own = own if matrix.part is None else matrix.part.take(own, dim=-1)
        torch.testing.assert_close(nn.functional.linear(x, matrix.weight, matrix.bias), own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_write_changes_one_matrix_only(family):
    block = Anatomy.of(zoo.build(family)).blocks[0]
    for role, matrix in block.matrices.items():
        before = {name: other.weight.detach().clone() for name, other in block.matrices.items()}
        value, bias = torch.randn(matrix.shape), None if matrix.bias is None else torch.randn(matrix.shape[0])
        matrix.write(value, bias)
        for name, other in block.matrices.items():
            assert torch.equal(other.weight, value if name == role else before[name])
        assert bias is None or torch.equal(matrix.bias, bias)
        with pytest.raises(AnatomyError, match="shapes must agree"):
            matrix.write(torch.zeros(1, 1))


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_keeping_all_in_another_order_changes_nothing(family):
    """Neurons and heads are interchangeable, so a permutation must leave the output as it is."""
    model = zoo.build(family)
    inputs = zoo.inputs_for(family)
    with torch.no_grad():
        before = model(**inputs)[0]
        for block in Anatomy.of(model).blocks:
            block.keep_neurons(torch.randperm(64).tolist())
            if block.family.heads_pinned_by is None:
                block.keep_heads(reversed(range(block.key_value_heads)))
        after = model(**inputs)[0]
    torch.testing.assert_close(after, before, rtol=1e-4, atol=2e-5)


def test_replace_puts_another_module_in_place():
    anatomy = Anatomy.of(zoo.build("bert"))
    wider = nn.Linear(48, 96)
    anatomy.blocks[2].up.replace(wider)
    assert anatomy.blocks[2].up.module is wider
    assert anatomy.blocks[2].part("intermediate.dense") is wider
    anatomy.blocks[2].up.replace(nn.Dropout())
    with pytest.raises(AnatomyError, match="a Dropout"):
        _ = anatomy.blocks[2].up


@pytest.mark.parametrize("numbers", [[], [0, 0], [64], [-1]])
def test_impossible_selections_are_refused_before_anything_changes(numbers):
    block = Anatomy.of(zoo.build("llama")).blocks[0]
    with pytest.raises(AnatomyError, match="block 0 has 64 feed-forward neurons"):
        block.keep_neurons(numbers)
    with pytest.raises(AnatomyError, match="block 0 has 2 key-value heads"):
        block.keep_heads(numbers)
    assert (block.ffn_width, block.heads) == (64, 4)


@pytest.mark.parametrize("groups", [1, 4])
def test_part_take_put_and_rows_agree(groups):
    fused = torch.randn(24, 5)
    for index in range(3):
        part = Part(index, 3, groups)
        rows = part.rows(torch.arange(8), 24)
        assert torch.equal(part.take(fused), fused[rows])
        value = torch.randn(8, 5)
        put = part.put(fused, value)
        assert torch.equal(part.take(put), value)
        others = sorted(set(range(24)) - set(rows.tolist()))
        assert torch.equal(put[others], fused[others])
        assert torch.equal(part.take(fused.T, dim=-1), part.take(fused).T)


def test_wrapped_models_are_unwrapped():
    model = zoo.build("bert")
    assert Anatomy.of(nn.DataParallel(model)).base is model
    assert Anatomy.of(torch.compile(model)).base is model


def test_unknown_family_names_the_known_ones_and_the_guide():
    from transformers import AlbertConfig, AlbertModel

    tiny = AlbertModel(AlbertConfig(vocab_size=9, hidden_size=8, num_attention_heads=2, intermediate_size=8))
    with pytest.raises(UnknownFamilyError, match=r"`albert` is not known; known: bert, .*add-a-family.md"):
        Anatomy.of(tiny)


def test_a_module_that_is_no_transformer_is_refused():
    with pytest.raises(AnatomyError, match="a Linear has no Transformers config"):
        Anatomy.of(nn.Linear(2, 2))


def test_minilm_for_real():
    model = AutoModelForSequenceClassification.from_pretrained(models.resolve("minilm"))
    anatomy = Anatomy.of(model)
    assert len(anatomy.blocks) == 6
    assert all((block.heads, block.head_width, block.ffn_width) == (12, 32, 1536) for block in anatomy.blocks)
    assert anatomy.word_embedding.shape == (30522, 384)
    assert anatomy.pooler.shape == (384, 384)


def test_stories_for_real(stories):
    anatomy = Anatomy.of(AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32))
    assert len(anatomy.blocks) == 6
    assert all((block.heads, block.head_width, block.ffn_width) == (6, 48, 768) for block in anatomy.blocks)
    assert all(block.gate is not None for block in anatomy.blocks)
