"""Students of every family: built in any shape, started from the teacher, loadable by anyone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import transformers as hf
from transformers import AutoModel

from slimformer import Anatomy, models
from slimformer.errors import ConfigError
from slimformer.methods.distill import StudentShape
from slimformer.methods.distill.student import build_student, source_blocks
from tests import zoo
from tests.parameters import slow

SMALL = {"layers": 2, "hidden": 24, "heads": 4}


def forward(model, family):
    with torch.no_grad():
        return model.eval()(**zoo.inputs_for(family))[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("start", ["random", "truncate", "spaced"])
def test_every_family_in_a_smaller_shape(family, start, tmp_path):
    student = build_student(zoo.build(family), StudentShape(**SMALL, start=start))
    block = Anatomy.of(student).blocks[0]
    assert (len(Anatomy.of(student).blocks), Anatomy.of(student).hidden, block.heads) == (2, 24, 4)
    assert block.ffn_width == 32  # 64 neurons for 48, in proportion
    student.save_pretrained(tmp_path)
    again = zoo.bare(family).from_pretrained(tmp_path)
    assert torch.equal(forward(student, family), forward(again, family))


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_student_as_large_as_its_teacher_is_its_teacher(family):
    teacher = zoo.build(family)
    student = build_student(teacher, StudentShape(start="truncate"), seed=9)
    torch.testing.assert_close(forward(student, family), forward(teacher, family))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "modernbert", "vit", "gpt_neox"])
def test_truncated_computes_what_the_teachers_first_blocks_compute(family):
    from slimformer import run_until

    teacher = zoo.build(family)
    student = build_student(teacher, StudentShape(layers=2, start="truncate"))
    inputs = zoo.inputs_for(family)
    with torch.no_grad():
        ours, theirs = run_until(student.eval(), 1, inputs).output, run_until(teacher, 1, inputs).output
    torch.testing.assert_close(ours, theirs)


def test_which_blocks_are_taken():
    assert source_blocks(6, 3, "truncate") == [0, 1, 2]
    assert source_blocks(6, 3, "spaced") == [1, 3, 5]
    assert source_blocks(12, 5, "spaced") == [1, 4, 6, 9, 11]
    assert source_blocks(4, 4, "spaced") == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="the student has 5 layers and the teacher 4"):
        source_blocks(4, 5, "spaced")


def test_sliced_heads_are_the_first_dimensions_of_the_first_heads():
    teacher = zoo.build("bert")
    student = build_student(teacher, StudentShape(layers=1, hidden=24, heads=4, start="truncate"))
    wanted = Anatomy.of(teacher).blocks[0].query.weight.unflatten(0, (4, 12))[:, :6, :24].flatten(0, 1)
    assert torch.equal(Anatomy.of(student).blocks[0].query.weight, wanted)


@pytest.mark.slow
def test_factorised_embeddings_make_a_model_anyone_can_load(tmp_path):
    student = build_student(zoo.build("bert"), StudentShape(layers=2, embedding=16, start="spaced"))
    assert student.config.model_type == "electra"
    assert Anatomy.of(student).word_embedding.shape == (99, 16)
    student.save_pretrained(tmp_path)
    code = (
        f"from transformers import AutoModel; print(AutoModel.from_pretrained({str(tmp_path)!r}).config.embedding_size)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "16"
    )


#: Families whose students may have factorised embeddings, and what their classes begin with.
FACTORISED = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "deberta-v2": "DebertaV2",
}
HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


@pytest.mark.parametrize("head", slow(HEADS, but=["MaskedLM"]))
@pytest.mark.parametrize("family", FACTORISED)
def test_factorised_embeddings_under_every_head(family, head, tmp_path):
    teacher = getattr(hf, f"{FACTORISED[family]}For{head}")(
        zoo.CONFIGS[family](num_labels=2 if head == "QuestionAnswering" else 3)
    )
    shape = StudentShape(**SMALL, embedding=8, start="spaced")
    student = build_student(zoo.enliven(teacher), shape)
    old, new = Anatomy.of(teacher), Anatomy.of(student)
    assert type(student).__name__.endswith(f"For{head}")
    assert student.config.id2label == teacher.config.id2label
    assert (len(new.blocks), new.hidden, new.word_embedding.shape) == (2, 24, (99, 8))
    assert models.positions(student.config) == models.positions(teacher.config)
    assert torch.equal(new.word_embedding.weight, old.word_embedding.weight[:, :8])
    assert torch.equal(new.blocks[-1].ffn_norm.weight, old.blocks[-1].ffn_norm.weight[:24])
    inputs = zoo.inputs_for(family)
    if head == "MultipleChoice":
        inputs = {name: each[:, None] for name, each in inputs.items()}
    student.save_pretrained(tmp_path)
    again = type(student).from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(**inputs)[0], student.eval()(**inputs)[0])


def test_positions_after_padding_are_those_of_the_same_tokens():
    teacher = zoo.build("roberta")
    student = build_student(teacher, StudentShape(layers=1, embedding=8, start="truncate"))
    table = "embeddings.position_embeddings"
    rows = teacher.get_submodule(table).weight[2:, :8]  # the padding token is 1
    assert torch.equal(student.get_submodule(table).weight, rows)


def test_a_head_that_the_other_family_lacks_is_refused():
    teacher = hf.BertForNextSentencePrediction(zoo.CONFIGS["bert"]())
    with pytest.raises(ConfigError, match="no `BertForNextSentencePrediction` with factorised embeddings"):
        build_student(teacher, StudentShape(embedding=8))


@pytest.mark.parametrize("family", sorted(set(zoo.FAMILIES) - FACTORISED.keys()))
def test_other_families_have_no_factorised_embeddings(family):
    with pytest.raises(ConfigError, match=f"`{family}` has no factorised embeddings in Transformers; leave"):
        build_student(zoo.build(family), StudentShape(embedding=8))


@pytest.mark.parametrize(
    ("family", "shape", "message"),
    [
        ("bert", {"hidden": 30, "heads": 4}, "`heads` is 4, which does not divide `hidden` 30; choose from 1, 2, 3, 5"),
        ("bert", {"embedding": 48}, "`embedding` is 48, not less than `hidden` 48"),
        ("llama", {"embedding": 8}, "`llama` has no factorised embeddings"),
        ("bert", {"hidden": 96, "start": "spaced"}, "a student larger than its teacher can only start at random"),
        ("llama", {"heads": 6, "hidden": 48, "start": "truncate", "layers": 9}, "the student has 9 layers"),
    ],
)
def test_impossible_shapes_are_refused(family, shape, message):
    with pytest.raises(ConfigError, match=message):
        build_student(zoo.build(family), StudentShape(**shape))


def test_a_random_student_of_minilm_depends_on_its_seed_alone():
    teacher = AutoModel.from_pretrained(models.resolve("minilm"))
    shape = StudentShape(layers=3, hidden=192, heads=12)
    one, same, other = (build_student(teacher, shape, seed) for seed in (1, 1, 2))
    assert sum(parameter.numel() for parameter in one.parameters()) < 8_000_000
    states = [model.state_dict() for model in (one, same, other)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert not torch.equal(
        states[0]["embeddings.word_embeddings.weight"], states[2]["embeddings.word_embeddings.weight"]
    )
