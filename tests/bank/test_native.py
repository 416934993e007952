"""A bank on the native engine: the answers of each task's own model, with the same bits whatever is asked beside it."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf

import slimformer
from slimformer import models
from slimformer.artifact import MaskFile, Step, save
from slimformer.artifact.probe.batch import LENGTH
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, UsageError
from slimformer.methods.mask import MaskConfig
from slimformer.methods.mask.scores import Masking
from slimformer.runtime.architecture import ARCHITECTURES
from slimformer.runtime.native import is_built
from slimformer.tasks.readers.idx import ImageArray
from tests import corpus, zoo
from tests.artifact.forging import resum
from tests.bank.shelf import QUESTIONS, TEXTS, expected, on_every_set
from tests.parameters import slow

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

#: Tasks whose rows share batches on the engine.
KINDS = ("classification", "regression", "tagging", "question-answering")
ASKED = {kind: QUESTIONS[kind] for kind in KINDS}


@pytest.fixture
def bank(shelf):
    return filled(shelf)


def filled(shelf, **settings):
    bank = MaskBank(shelf / "base", engine="native", **settings)
    for kind in KINDS:
        bank.add(kind, shelf / kind)
    return bank


def rows_of(logits, kind):
    """What a head gave, question by question: [positions, …] where there is something for each token."""
    return [np.stack(row, axis=-1) if kind == "question-answering" else row for row in logits[kind]]


def alone(bank):
    """The answer to each question by itself, which has no padding."""
    return {kind: [bank.logits({kind: [each]})[kind][0] for each in asked] for kind, asked in ASKED.items()}


def assert_same_bits(found, expected, kind):
    """The same numbers, question by question; those behind the last token are padding."""
    for row, wanted in zip(rows_of(found, kind), rows_of(expected, kind), strict=True):
        assert np.array_equal(row[: len(wanted)].view(np.int32), wanted.view(np.int32))


def test_each_task_answers_as_its_own_model(shelf, bank):
    found = bank.logits(ASKED, batch_size=5)
    for kind, questions in ASKED.items():
        for row, wanted in zip(found[kind], expected(shelf, kind, questions), strict=True):
            got = torch.from_numpy(np.ascontiguousarray(row[0] if kind == "question-answering" else row))
            torch.testing.assert_close(got[: len(wanted)], wanted, rtol=2e-5, atol=2e-5)


def test_answers_are_those_of_the_bank_in_torch(shelf, bank):
    other = MaskBank(shelf / "base")
    for kind in KINDS:
        other.add(kind, shelf / kind)
    mine, theirs = bank.predict(ASKED), other.predict(ASKED)
    assert [each["label"] for each in mine["classification"]] == [each["label"] for each in theirs["classification"]]
    assert [each["tags"] for each in mine["tagging"]] == [each["tags"] for each in theirs["tagging"]]
    for one, another in zip(mine["regression"], theirs["regression"], strict=True):
        assert one["value"] == pytest.approx(another["value"], abs=1e-5)
    for one, another in zip(mine["question-answering"], theirs["question-answering"], strict=True):
        assert one["text"] == another["text"]


def test_an_answer_has_the_same_bits_alone_and_in_any_batch(bank):
    expected = alone(bank)
    names = [*ASKED]
    for size in (1, 2, 3, 7, 32):
        random.Random(size).shuffle(names)
        found = bank.logits({name: ASKED[name] for name in names}, batch_size=size)
        for kind in KINDS:
            assert_same_bits(found, expected, kind)


def test_an_answer_has_the_same_bits_on_every_instruction_set(shelf, bank, monkeypatch):
    expected = alone(bank)
    for _ in on_every_set(monkeypatch):
        found = filled(shelf, check=False).logits(ASKED)
        for kind in KINDS:
            assert_same_bits(found, expected, kind)


def written(folder, base, seed, dropped, family="bert", kind="classification", classes=3):
    """A mask that nobody trained, for a base of a family."""
    head = {
        "classification": hf.AutoModelForSequenceClassification,
        "image-classification": hf.AutoModelForImageClassification,
    }[kind]
    if family == "deit":
        head = hf.DeiTForImageClassification
    torch.manual_seed(seed)
    model = head.from_pretrained(base, num_labels=classes, dtype=torch.float32).eval()
    Masking.start(model, MaskConfig(blocks="0-", seed=seed, initial_sparsity=dropped)).end(model)
    save(
        folder,
        model,
        base=base,
        processor=models.load_processor(base),
        step=Step(method="mask"),
        task={"name": kind, "kind": kind, "labels": list("abcdefghijklmnop"[:classes])},
        storage="mask",
    )
    return folder


@pytest.mark.parametrize("family", slow(sorted(ARCHITECTURES.keys() & set(zoo.TEXTS)), but=("bert",)))
def test_every_family_with_few_and_with_most_weights_dropped(family, tmp_path):
    base = tmp_path / "base"
    zoo.build(family).save_pretrained(base)
    corpus.tokenizer().save_pretrained(base)
    bank = MaskBank(base, engine="native")
    for name, dropped in (("few", 0.05), ("half", 0.5), ("most", 0.95)):
        bank.add(name, written(tmp_path / name, base, len(name), dropped, family))
    asked = dict.fromkeys(bank.tasks, TEXTS)
    found = bank.logits(asked)
    for name in asked:
        model = slimformer.load(tmp_path / name).model
        for text, row in zip(TEXTS, found[name], strict=True):
            with torch.no_grad():
                wanted = model(**corpus.tokenizer()(text, return_tensors="pt")).logits[0].numpy()
            assert np.abs(row - wanted).max() < 2e-5 * max(1, np.abs(wanted).max())
            assert np.array_equal(row, bank.logits({name: [text]})[name][0])


@pytest.mark.parametrize("family", ["vit", pytest.param("deit", marks=pytest.mark.slow)])
def test_images(family, tmp_path):
    base = tmp_path / "base"
    zoo.build(family).save_pretrained(base)
    (base / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}'
    )
    native, other = MaskBank(base, engine="native"), MaskBank(base)
    for seed in (1, 2):
        folder = written(tmp_path / str(seed), base, seed, 0.2, family, "image-classification")
        native.add(str(seed), folder)
        other.add(str(seed), folder)
    draw = np.random.default_rng(0)
    asked = {
        str(seed): [ImageArray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8), "here") for _ in range(3)]
        for seed in (1, 2)
    }
    mine, theirs = native.logits(asked, batch_size=4), other.logits(asked)
    for name in asked:
        np.testing.assert_allclose(np.stack(mine[name]), np.stack(theirs[name]), rtol=1e-4, atol=1e-5)


def test_a_base_in_bfloat16_stays_so_in_memory(tmp_path):
    corpus.model_folder(tmp_path / "plain")
    hf.AutoModel.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16).save_pretrained(tmp_path / "base")
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    folder = written(tmp_path / "mask", tmp_path / "base", 1, 0.1)
    native, other, plain = MaskBank(engine="native"), MaskBank(), MaskBank(tmp_path / "plain", engine="native")
    for bank in (native, other):
        bank.add("one", folder)
    for mine, theirs in zip(native.logits({"one": TEXTS})["one"], other.logits({"one": TEXTS})["one"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)
    # All but positions, types and biases, which are looked up and added in float32, takes half.
    assert native.memory()["base"] < 0.6 * plain.memory()["base"]


def test_memory_is_that_of_one_base_and_of_what_is_dropped(shelf, bank):
    base = hf.AutoModel.from_pretrained(shelf / "base")
    memory = bank.memory()
    assert abs(memory["base"] / sum(each.numel() * each.element_size() for each in base.parameters()) - 1) < 0.05
    assert memory["weights"] == 0
    bank.remove("tagging")
    # Of each masked output where its list begins and which one it is; of each dropped weight a byte.
    bits = MaskFile.read(shelf / "tagging" / "mask.safetensors")
    dropped = sum(int((bits.mask(name) == 0).sum()) for name in bits.bits)
    outputs = sum(shape[0] for shape in bits.shapes.values())
    matrices = 4
    assert memory["masks"] - bank.memory()["masks"] == dropped + 5 * outputs + 4 * matrices


def test_using_merging_and_removing(shelf, bank, tmp_path):
    model = bank.use("classification")
    assert bank.current == "classification"
    loaded = slimformer.load(shelf / "classification").model.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())
    bank.merge("classification", tmp_path / "plain")
    plain = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in plain.items())
    bank.remove("classification")
    assert bank.current is None
    with pytest.raises(ArtifactError, match="no task `classification`"):
        bank.predict({"classification": TEXTS})
    assert bank.predict({"regression": TEXTS[:1], "tagging": []})["tagging"] == []


def test_what_the_engine_does_not_run_is_refused_by_name(shelf, bank):
    with pytest.raises(ArtifactError, match=r"has no head of `BertForMultipleChoice`"):
        bank.add("choices", shelf / "multiple-choice")
    with pytest.raises(ArtifactError, match=r"removes neurons and heads, and tasks share whole matrices"):
        bank.add("pruned", shelf / "pruned")
    assert bank.tasks == KINDS
    for settings in ({"memory_limit": 5}, {"device": "cpu"}):
        with pytest.raises(UsageError, match=r"beside `--engine native`, which has none"):
            MaskBank(shelf / "base", engine="native", **settings)
    with pytest.raises(UsageError, match=r"`--engine` is `fast`; give torch or native"):
        MaskBank(shelf / "base", engine="fast")


def test_a_mask_whose_head_was_changed_does_not_answer_as_recorded(shelf, bank, tmp_path):
    """Also where whoever changed it made all sums agree."""
    for kind in ("classification", "tagging"):
        folder = shutil.copytree(shelf / kind, tmp_path / kind)
        file = MaskFile.read(folder / "mask.safetensors")
        changed = {name: 2 * tensor for name, tensor in file.whole.items()}
        replace(file, whole=changed).write(folder / "mask.safetensors")
        resum(folder)
        with pytest.raises(ArtifactError, match=r"does not give the outputs recorded at saving on the native engine"):
            bank.add("changed", folder)
    assert bank.tasks == KINDS


def test_as_many_classes_as_tokens_were_recorded(shelf, bank, tmp_path):
    """What one row for each text has in its columns is no padding."""
    folder = written(tmp_path / "mask", shelf / "base", 1, 0.1, classes=LENGTH)
    bank.add("one", folder)
    assert bank.logits({"one": TEXTS[:1]})["one"][0].shape == (LENGTH,)


def test_a_head_that_the_base_has_already(tmp_path):
    config = hf.BertConfig.from_pretrained(corpus.model_folder(tmp_path / "plain"), num_labels=3)
    zoo.enliven(hf.BertForSequenceClassification(config)).save_pretrained(tmp_path / "base")
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    folder = written(tmp_path / "mask", tmp_path / "base", 1, 0.1)
    assert not any(name.startswith("classifier") for name in MaskFile.read(folder / "mask.safetensors").whole)
    native, other = MaskBank(engine="native"), MaskBank()
    for bank in (native, other):
        bank.add("one", folder)
    for mine, theirs in zip(native.logits({"one": TEXTS})["one"], other.logits({"one": TEXTS})["one"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", None])
def test_a_task_is_replaced_in_one_step(engine, shelf, tmp_path):
    """While threads ask, every answer is that of one mask or of the other, never of none and never of both."""
    folders = [written(tmp_path / str(seed), shelf / "base", seed, 0.3) for seed in (1, 2)]
    bank = MaskBank(shelf / "base", engine=engine)
    answers = []
    for folder in folders:
        bank.add("one", folder, replace=True)
        answers.append(bank.logits({"one": TEXTS})["one"])
    assert not np.array_equal(np.stack(answers[0]), np.stack(answers[1]))
    with pytest.raises(ArtifactError, match=r"has a task `one` already; .* or `replace=True`"):
        bank.add("one", folders[0])
    stop, unlike = threading.Event(), []

    def ask():
        while not stop.is_set():
            found = np.stack(bank.logits({"one": TEXTS})["one"])
            if not any(np.array_equal(found, np.stack(answer)) for answer in answers):
                unlike.append(found)

    def change():
        for turn in range(8):
            bank.add("one", folders[turn % 2], replace=True)

    with ThreadPoolExecutor(3) as pool:
        askers = [pool.submit(ask), pool.submit(ask)]
        replacing = pool.submit(change)
        wait([replacing])
        stop.set()
    assert [each.exception() for each in (*askers, replacing)] == [None] * 3
    assert not unlike
    assert bank.tasks == ("one",)


def test_a_failed_replacement_leaves_the_task_as_it_was(shelf, bank, tmp_path):
    before = bank.logits({"regression": TEXTS})
    with pytest.raises(ArtifactError):
        bank.add("regression", shelf / "pruned", replace=True)
    with pytest.raises(ArtifactError):
        bank.add("regression", tmp_path / "nothing", replace=True)
    assert_same_bits(bank.logits({"regression": TEXTS}), before, "regression")


def test_batches_are_of_rows_of_like_length_whatever_their_tasks(bank, monkeypatch):
    """The longest first, and those of a task beside each other within a batch."""
    asked = {
        "classification": ["film " * count for count in (1, 9, 3, 7)],
        "tagging": ["plot " * n for n in (8, 2, 6, 4)],
    }
    batches, run = [], bank._base.encoder.run_tasks

    def record(sequences, tasks, types=None):
        batches.append([(len(sequence), task.name) for sequence, task in zip(sequences, tasks, strict=True)])
        return run(sequences, tasks, types)

    monkeypatch.setattr(bank._base.encoder, "run_tasks", record)
    bank.predict(asked, batch_size=4)
    lengths = [[length for length, _ in batch] for batch in batches]
    assert [sorted(batch) for batch in lengths] == [[8, 9, 10, 11], [3, 4, 5, 6]]  # with [CLS] and [SEP]
    for batch in batches:
        names = [name for _, name in batch]
        assert len({*names}) == 2  # of both tasks
        assert sum(one != other for one, other in itertools.pairwise(names)) == 1
