"""From a budget to a shape: never above it, and the next larger shape would be."""

from __future__ import annotations

import json
import random

import pytest
import torch
import transformers as hf

import slimformer
from slimformer import Anatomy, artifact, models
from slimformer.artifact.provenance import file_size, stored_tensors
from slimformer.errors import ConfigError
from slimformer.methods.distill import DistillConfig, StudentShape
from slimformer.methods.distill.setup import set_up
from slimformer.methods.distill.shaping import Ladder, Proposal, choose_shape, suitable_heads
from slimformer.methods.distill.student import build_student
from slimformer.methods.distill.timing import NOTE, keep_shape
from tests import zoo
from tests.methods.distill.test_distill import distill, place  # noqa: F401 (a fixture)
from tests.parameters import slow
from tests.runs import run

#: Teachers of the sizes that people have; nothing of them is built but skeletons.
LARGE = {
    "minilm": hf.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
    ),
    "bert-large": hf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    "xlm-r": hf.XLMRobertaConfig(
        hidden_size=768, vocab_size=250_002, max_position_embeddings=514, pad_token_id=1, type_vocab_size=1
    ),
    "distilbert": hf.DistilBertConfig(),
    "modernbert": hf.ModernBertConfig(),
    "llama": hf.LlamaConfig(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, intermediate_size=8192
    ),
    "vit": hf.ViTConfig(),
}


def skeleton(config):
    with torch.device("meta"):
        return hf.AutoModel.from_config(config)


def settings(**values):
    return DistillConfig.make(values)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_the_size_of_a_file_is_known_without_writing_it(family, tmp_path):
    for teacher in (zoo.build(family), zoo.build_headed(family)):
        if family == "vit_mae" and type(teacher).__name__.endswith("PreTraining"):
            continue  # its decoder does not get smaller and takes 100 MB
        ladder = Ladder(teacher, StudentShape())
        for body in (ladder.bodies[0], ladder.bodies[-1]):
            shape = ladder.rungs(body)[0]
            build_student(teacher, shape).save_pretrained(tmp_path)
            assert ladder.propose(shape).bytes == (tmp_path / "model.safetensors").stat().st_size


def test_types_of_different_widths_lie_in_a_file_as_they_are_counted(tmp_path):
    from safetensors.torch import save_file

    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {f"ä.{number}": torch.ones(3, number + 1).to(kind) for number, kind in enumerate(kinds)}
    save_file(tensors, tmp_path / "file", metadata={"format": "pt"})
    assert file_size(tensors) == (tmp_path / "file").stat().st_size


@pytest.mark.parametrize("seed", slow(range(10), but=[0, 1]))
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_files_keep_to_random_budgets_and_the_next_larger_would_not(family, seed, tmp_path):
    rng = random.Random(f"{family} {seed}")
    config = zoo.CONFIGS[family](vocab_size=rng.choice([99, 400, 3000]))
    teacher = hf.AutoModel.from_config(config)
    ladder = Ladder(teacher, StudentShape())
    least, most = (ladder.propose(shape).bytes for shape in (ladder.rungs(ladder.bodies[0])[0], ladder.own))
    budget = rng.randrange(least, most)
    chosen = choose_shape(settings(max_bytes=budget), teacher, 64)
    build_student(teacher, chosen.shape).save_pretrained(tmp_path / "student")
    assert (tmp_path / "student" / "model.safetensors").stat().st_size == chosen.bytes <= budget
    larger = ladder.next_larger(chosen.shape)
    if larger is not None:  # above the last rung is the teacher
        build_student(teacher, larger.shape).save_pretrained(tmp_path / "larger")
        assert (tmp_path / "larger" / "model.safetensors").stat().st_size == larger.bytes > budget


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bytes", "parameters"])
@pytest.mark.parametrize("name", LARGE)
def test_twenty_random_budgets(name, what):
    teacher = skeleton(LARGE[name])
    ladder = Ladder(teacher, StudentShape())
    flag = {"bytes": "max_bytes", "parameters": "max_params"}[what]
    least, most = (getattr(ladder.propose(shape), what) for shape in (ladder.rungs(ladder.bodies[0])[0], ladder.own))
    rng = random.Random(name)
    seen = []
    for budget in sorted(int(least * (most / least) ** rng.random()) for _ in range(20)):
        chosen = choose_shape(settings(**{flag: budget}), teacher, 128)
        assert getattr(chosen, what) <= budget
        larger = ladder.next_larger(chosen.shape)
        assert larger is None or getattr(larger, what) > budget
        seen.append(getattr(chosen, what))
        assert chosen.shape.hidden % chosen.shape.heads == 0
        assert chosen.shape.layers <= teacher.config.num_hidden_layers
    assert seen == sorted(seen)  # more is never worse
    assert len(set(seen)) > 8


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_costs_rise_from_rung_to_rung(name):
    ladder = Ladder(skeleton(LARGE[name]), StudentShape())
    firsts = [ladder.propose(ladder.rungs(body)[0]) for body in ladder.bodies]
    assert [each.bytes for each in firsts] == sorted({each.bytes for each in firsts})
    assert [each.parameters for each in firsts] == sorted({each.parameters for each in firsts})
    for body in ladder.bodies:
        costs = [ladder.propose(rung).bytes for rung in ladder.rungs(body)]
        assert costs == sorted(set(costs))


def test_ten_megabytes_of_minilm():
    chosen, same = (choose_shape(settings(max_bytes="10MB"), skeleton(LARGE["minilm"]), 128) for _ in range(2))
    assert chosen == same
    shape = chosen.shape
    assert (shape.layers, shape.hidden, shape.heads, shape.ffn, shape.embedding) == (3, 128, 8, 512, 56)
    assert chosen.vocabulary == 30522
    assert str(chosen) == (
        "student: layers 3, hidden 128, heads 8, ffn 512, embedding 56, vocabulary 30,522: "
        f"{chosen.parameters:,} parameters, {chosen.bytes:,} bytes"
    )
    assert Proposal.read(json.loads(json.dumps(chosen.summary()))) == chosen


def test_an_embedding_is_factorised_where_it_would_be_most_of_the_student():
    small, large = (
        choose_shape(settings(max_params=most), skeleton(LARGE["bert-large"]), 128) for most in ("5M", "200M")
    )
    assert small.shape.embedding is not None
    assert large.shape.embedding is None
    assert choose_shape(settings(max_params="20M"), skeleton(LARGE["modernbert"]), 128).shape.embedding is None


@pytest.mark.parametrize(
    "fixed", [{"layers": 2}, {"hidden": 96}, {"heads": 4}, {"embedding": 24}, {"ffn": 100}, {"layers": 5, "hidden": 64}]
)
def test_what_is_given_of_a_shape_is_kept(fixed):
    teacher = skeleton(LARGE["minilm"])
    config = settings(max_bytes="8MB", **fixed)
    chosen = choose_shape(config, teacher, 128)
    assert {name: getattr(chosen.shape, name) for name in fixed} == fixed
    assert chosen.bytes <= 8_000_000
    larger = Ladder(teacher, StudentShape(**fixed)).next_larger(chosen.shape)
    assert larger is None or larger.bytes > 8_000_000


@pytest.mark.parametrize("more", [{"start": "spaced"}, {"objective": "minilm-v1"}])
def test_a_student_that_shares_its_teachers_heads_still_does(more):
    chosen = choose_shape(settings(max_bytes="30MB", **more), skeleton(LARGE["minilm"]), 128)
    assert chosen.shape.heads == 12
    assert chosen.shape.start == more.get("start", "random")


def test_all_budgets_are_kept():
    teacher = skeleton(LARGE["minilm"])
    both = choose_shape(settings(max_bytes="40MB", max_params="2.5M"), teacher, 128)
    assert both == choose_shape(settings(max_params="2.5M"), teacher, 128)


@pytest.mark.parametrize(
    ("hidden", "teacher", "heads"),
    [
        (192, LARGE["minilm"], 12),
        (384, LARGE["minilm"], 12),
        (128, LARGE["minilm"], 8),
        (320, LARGE["minilm"], 16),
        (16, LARGE["minilm"], 1),
        (1024, LARGE["bert-large"], 16),
        (256, LARGE["llama"], 16),
        (96, LARGE["llama"], 4),  # one group of keys for four heads
    ],
)
def test_heads_that_suit_a_width(hidden, teacher, heads):
    assert suitable_heads(hidden, teacher) == heads


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            {"max_bytes": 1000},
            r"`max_bytes` is 1,000, and the smallest student takes [\d,]+; give at least that, or drop",
        ),
        ({"max_params": "100"}, r"`max_params` is 100, and the smallest student takes [\d,]+; give"),
        ({"max_bytes": "1GB"}, r"`max_bytes` is 1,000,000,000, and the teacher itself has [\d,]+ bytes as a student"),
        ({"max_params": "1B"}, "the teacher itself has"),
        ({"max_bytes": "1MB", "hidden": 30, "heads": 4}, "no width of a student goes with `hidden` 30, `heads` 4"),
    ],
)
def test_budgets_without_a_student_are_refused(budget, message):
    with pytest.raises(ConfigError, match=message):
        choose_shape(settings(**budget), zoo.build("bert"), 64)


def test_the_smallest_number_that_is_named_is_enough():
    teacher = zoo.build("bert")
    with pytest.raises(ConfigError) as refused:
        choose_shape(settings(max_bytes=1000), teacher, 64)
    least = int(str(refused.value).split("takes ")[1].split(";")[0].replace(",", ""))
    assert choose_shape(settings(max_bytes=least), teacher, 64).bytes == least
    with pytest.raises(ConfigError):
        choose_shape(settings(max_bytes=least - 1), teacher, 64)


def test_a_shape_that_is_given_may_leave_some_of_a_budget():
    chosen = choose_shape(settings(max_bytes="1GB", layers=1), zoo.build("bert"), 64)
    assert (chosen.shape.layers, chosen.shape.hidden) == (1, 48)


def test_a_run_keeps_to_its_budget_and_records_the_shape(place, tmp_path):  # noqa: F811
    budget = 50_000
    shapeless = {"layers": None, "hidden": None, "heads": None}
    result = distill(place, max_bytes=budget, **shapeless, out=tmp_path / "out")
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    recorded = artifact.read_manifest(tmp_path / "out").steps[-1].config["chosen_shape"]
    assert recorded["bytes"] == size <= budget
    assert recorded["hidden"] == Anatomy.of(result.model).hidden
    assert recorded["parameters"] == result.model.num_parameters()
    assert any(note.startswith("student: layers 1, hidden ") for note in result.notes)


def test_a_trimmed_student_has_the_words_of_the_corpus_alone(place, tmp_path):  # noqa: F811
    text = tmp_path / "text.txt"
    text.write_text("the film was good\nthe plot was bad\n" * 20)
    shape = {"layers": 1, "hidden": 24, "heads": 4}
    result = distill(place, corpus=[str(text)], **shape, trim=True, out=tmp_path / "out", start="truncate")
    kept = result.model.config.vocab_size
    assert kept == len(result.processor) < 25
    assert result.notes[0] == f"{kept} of 99 word pieces kept, 100.00 % of the corpus's tokens"
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("the film was good") == ["the", "film", "was", "good"]
    assert tokenizer.tokenize("lovely") == ["[UNK]"]
    assert artifact.verify(tmp_path / "out").max_difference == 0
    smaller = distill(
        place, corpus=[str(text)], **shape, trim=True, keep=10, teacher_dtype="bfloat16", start="truncate"
    )
    assert smaller.model.config.vocab_size <= 10


def test_a_trimmed_vocabulary_leaves_room_for_blocks(place):  # noqa: F811
    config = {"max_bytes": "50kB", "teacher": str(place / "teacher"), "corpus": [str(place / "text.txt")]}
    whole, trimmed = (set_up(settings(**config, trim=trim)).proposal for trim in (False, True))
    assert trimmed.vocabulary < whole.vocabulary
    assert trimmed.shape.hidden >= whole.shape.hidden
    assert max(trimmed.bytes, whole.bytes) <= 50_000


def test_milliseconds_are_kept_as_measured(place, tmp_path):  # noqa: F811
    teacher = zoo.build("bert")
    chosen = choose_shape(settings(max_ms=1e3, layers=1, threads=1), teacher, 16)
    assert (chosen.shape.layers, chosen.shape.hidden) == (1, 48)  # fast enough, whatever the machine
    assert 0 < chosen.milliseconds <= 1e3
    assert chosen.bytes == choose_shape(settings(max_bytes="1GB", layers=1), teacher, 16).bytes
    with pytest.raises(
        ConfigError, match=r"`max_ms` is 1e-06, and the smallest student takes [\d.]+; give at least that$"
    ):
        choose_shape(settings(max_ms=1e-6), teacher, 16)
    with pytest.raises(ConfigError, match=r"`max_ms` is 100000, and the teacher itself takes [\d.]+ here; give less"):
        choose_shape(settings(max_ms=1e5), teacher, 16)


def test_a_resumed_run_keeps_the_shape_it_began_with(place, tmp_path):  # noqa: F811
    config = settings(
        teacher=str(place / "teacher"), corpus=[str(place / "text.txt")], max_ms=1e3, layers=1, max_length=16
    )
    began = keep_shape(set_up(config), tmp_path)
    noted = json.loads((tmp_path / NOTE).read_text())
    (tmp_path / NOTE).write_text(json.dumps({**noted, "hidden": 24, "heads": 4}))
    again = keep_shape(set_up(config), tmp_path)
    assert (began.shape.hidden, again.shape.hidden) == (48, 24)
    assert Anatomy.of(again.new_student()).hidden == 24
    (tmp_path / NOTE).write_text("[]")
    with pytest.raises(slimformer.errors.TrainingError, match=f"{NOTE}` cannot be read"):
        keep_shape(set_up(config), tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"student": "x", "max_bytes": "1MB"}, "leave out `max_bytes` or `student`"),
        ({"student": "x", "trim": True}, "leave out `trim` or `student`"),
        ({"keep": 100, "layers": 1}, "`keep` is 100 and changes nothing without `trim`"),
        ({"max_ms": 5, "lr_grid": "1e-3,2e-3"}, "`max_ms` would be measured anew for each rate"),
        ({"max_bytes": "ten"}, "`max_bytes` is `ten`: give a size such as `10MB`"),
    ],
)
def test_settings_that_do_not_go_together(values, message):
    with pytest.raises(ConfigError, match=message):
        settings(**values)


def test_flags_of_a_budget(place, tmp_path):  # noqa: F811
    files = ["--teacher", place / "teacher", "--corpus", place / "text.txt", "--out", tmp_path / "out"]
    run("distill", *files, "--max-bytes", "1kB").refused("`--max-bytes` is 1,000", "or drop word pieces")
    run("distill", *files, "--max-bytes", "10 parsecs").refused("`--max-bytes` is `10 parsecs`", code=2)
    run("distill", *files, "--max-params", "1B").refused("`--max-params` is 1,000,000,000", "take the teacher as it is")
    assert list(tmp_path.iterdir()) == []


def test_the_vocabulary_of_images_is_none(place):  # noqa: F811
    chosen = choose_shape(settings(max_params="5M"), skeleton(LARGE["vit"]), None)
    assert chosen.vocabulary is None
    assert "embedding" not in str(chosen)


def test_real_minilm_in_ten_megabytes(tmp_path):
    teacher = hf.AutoModel.from_pretrained(models.resolve("minilm"))
    chosen = choose_shape(settings(max_bytes="10MB"), teacher, 128)
    build_student(teacher, chosen.shape).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size == chosen.bytes <= 10_000_000
    stored = stored_tensors(hf.AutoModel.from_pretrained(tmp_path))
    assert chosen.parameters == sum(tensor.numel() for tensor in stored.values())
