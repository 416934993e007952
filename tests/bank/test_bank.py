"""One base, many tasks: the same answers as each task's own model, whatever is asked, kept or removed meanwhile."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf

import slimformer
from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.artifact import MaskFile, Step, save
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, CheckpointError, DataError
from slimformer.inference.pipeline import open_pipeline
from slimformer.methods.mask import MaskConfig
from slimformer.methods.mask.scores import Masking
from tests import corpus, runs, zoo
from tests.artifact.corrupting import agree
from tests.artifact.forging import edit, resum
from tests.bank.shelf import QUESTIONS, QUICK, TEXTS, expected
from tests.methods.test_every_kind import generated


@pytest.fixture
def bank(shelf):
    bank = MaskBank(shelf / "base")
    for kind in QUESTIONS:
        bank.add(kind, shelf / kind)
    return bank


@pytest.mark.slow
def test_mixed_batches_give_each_task_its_own_answers(shelf, bank):
    found = bank.logits(QUESTIONS, batch_size=5)
    for kind, questions in QUESTIONS.items():
        for row, wanted in zip(found[kind], expected(shelf, kind, questions), strict=True):
            got = torch.from_numpy(row[0] if kind == "question-answering" else row)[: len(wanted)]
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_answers(shelf, bank):
    found = bank.predict(QUESTIONS)
    logits = {kind: expected(shelf, kind, questions) for kind, questions in QUESTIONS.items()}
    labels = slimformer.load(shelf / "classification").manifest.task.labels
    for answer, row in zip(found["classification"], logits["classification"], strict=True):
        assert answer["label"] == labels[int(row.argmax())]
        assert answer["probability"] == pytest.approx(float(row.softmax(-1).max()), abs=1e-5)
    values = [answer["value"] for answer in found["regression"]]
    assert values == pytest.approx([float(row) for row in logits["regression"]], abs=1e-4)
    assert [len(answer["tags"]) for answer in found["tagging"]] == [4, 1, 12, 1, 2]
    for answer, row, (_, choices) in zip(
        found["multiple-choice"], logits["multiple-choice"], QUESTIONS["multiple-choice"], strict=True
    ):
        assert answer["index"] == int(row.argmax())
        assert answer["choice"] == choices[answer["index"]]
        assert answer["scores"] == pytest.approx(row.softmax(-1).tolist(), abs=1e-5)
    for answer, (_, context) in zip(found["question-answering"], QUESTIONS["question-answering"], strict=True):
        assert answer["text"]
        assert answer["text"] == context[answer["start"] : answer["end"]]


@pytest.mark.parametrize("limit", [0, 10**9])
def test_use_gives_the_very_model(shelf, bank, limit):
    bank.memory_limit = limit
    for kind in QUESTIONS:
        mine, loaded = bank.use(kind), slimformer.load(shelf / kind).model
        assert bank.current == kind
        ids = torch.randint(5, 20, (2, 3, 7) if kind == "multiple-choice" else (2, 7))
        with torch.no_grad():
            # Equal weights at other addresses may be multiplied in another order.
            torch.testing.assert_close(mine(input_ids=ids)[0], loaded(input_ids=ids)[0], rtol=1e-5, atol=1e-6)
        for block, other in zip(Anatomy.of(mine).blocks, Anatomy.of(loaded).blocks, strict=True):
            for role, matrix in block.matrices.items():
                assert torch.equal(matrix.weight, other.matrices[role].weight)
        if limit:
            state = mine.state_dict()
            assert all(torch.equal(state[name], tensor) for name, tensor in loaded.state_dict().items())


def test_the_base_is_shared_and_never_changed(shelf, bank):
    before = hf.AutoModel.from_pretrained(shelf / "base").state_dict()
    one, other = bank.use("classification"), bank.use("regression")
    assert (
        one.bert.embeddings.word_embeddings.weight.data_ptr() == other.bert.embeddings.word_embeddings.weight.data_ptr()
    )
    bank.predict(QUESTIONS)
    bank.use("pruned")
    after = bank._base.bare.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.slow
def test_masked_weights_stay_within_the_limit(shelf):
    sizes = {}
    # Block 1 of the base: four matrices of 32 x 32 and two of 32 x 64; a tagger has no pooler.
    block, pooler = 4 * (4 * 1024 + 2 * 2048), 4 * 1024
    for limit in (0, block - 1, block, 2 * block + pooler, 10**9):
        bank = MaskBank(shelf / "base", memory_limit=limit)
        for kind in ("classification", "regression", "tagging"):
            bank.add(kind, shelf / kind)
            bank.use(kind)
        sizes[limit] = bank.memory()["weights"]
    assert [*sizes.values()] == [0, 0, block, 2 * block + pooler, 3 * block + 2 * pooler]
    kept, _, again = (bank.use(kind).bert.encoder.layer[1] for kind in ("regression", "tagging", "regression"))
    assert again.output.dense.weight.data_ptr() == kept.output.dense.weight.data_ptr()


def test_weights_kept_ready_serve_mixed_batches(shelf):
    bank = MaskBank(shelf / "base", memory_limit=10**9)
    for kind in ("classification", "regression"):
        bank.add(kind, shelf / kind)
    asked = {"classification": TEXTS, "regression": TEXTS}
    before = bank.logits(asked)
    bank.use("classification")
    after = bank.logits(asked)
    for kind in asked:
        assert [row.tolist() for row in before[kind]] == [row.tolist() for row in after[kind]]


def test_memory_is_what_it_says(shelf):
    bank = MaskBank(shelf / "base")
    bank.add("classification", shelf / "classification")
    base = hf.AutoModel.from_pretrained(shelf / "base")
    tensors = [*base.parameters(), *base.buffers()]
    assert bank.memory() == {
        "base": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "masks": (4 * 1024 + 2 * 2048 + 1024) // 8 + 7,  # a byte each says how they are coded
        "heads": 4 * (3 * 32 + 3),
        "weights": 0,
    }


def test_a_narrowed_task_counts_its_own_matrices(shelf):
    bank = MaskBank(shelf / "base")
    bank.add("pruned", shelf / "pruned")
    # Block 1 keeps 2 of 4 heads and 32 of 64 neurons, with their biases; pooler and head are the task's own too.
    matrices = 4 * 16 * 32 + 3 * 16 + 2 * 32 * 32 + 32
    assert bank.memory()["heads"] == 4 * (matrices + 32 * 32 + 3 * 32 + 3)


def test_adding_and_removing(shelf, bank):
    with pytest.raises(ArtifactError, match="has a task `regression` already"):
        bank.add("regression", shelf / "regression")
    bank.use("regression")
    bank.remove("regression")
    assert "regression" not in bank.tasks
    assert bank.current is None
    with pytest.raises(ArtifactError, match="the bank has no task `regression`; it has `classification`, `tagging`"):
        bank.use("regression")
    with pytest.raises(ArtifactError, match="no task `regression`"):
        bank.remove("regression")
    bank.add("regression", shelf / "regression")
    assert bank.predict({"regression": TEXTS[:1], "tagging": []})["tagging"] == []


def test_the_base_follows_from_the_first_mask(shelf):
    bank = MaskBank()
    assert bank.predict({}) == {}
    bank.add("one", shelf / "classification")
    assert bank.predict({"one": TEXTS[:1]})["one"][0]["label"].startswith("c")


def test_a_mask_is_no_base(shelf):
    with pytest.raises(CheckpointError, match="is a mask on a base and no checkpoint; merge the two first"):
        MaskBank(shelf / "classification")


def test_a_mask_of_another_base_is_refused(shelf, tmp_path):
    torch.manual_seed(9)
    other = hf.BertModel(hf.BertConfig.from_pretrained(shelf / "base"))
    other.save_pretrained(tmp_path / "other")
    corpus.tokenizer().save_pretrained(tmp_path / "other")
    bank = MaskBank(tmp_path / "other")
    with pytest.raises(
        ArtifactError,
        match=r"is not the base of the mask in .*: the fingerprint of its weights is .*; give the base `base`",
    ):
        bank.add("one", shelf / "classification")
    assert bank.tasks == ()


def test_a_harmed_mask_is_refused(shelf, bank, tmp_path):
    shutil.copytree(shelf / "regression", tmp_path / "harmed")
    path = tmp_path / "harmed" / "mask.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="was changed"):
        bank.add("harmed", tmp_path / "harmed")


@pytest.mark.parametrize("question", [3, ("a", "b", "c"), {"texts": "a"}, None])
def test_questions_that_make_no_sense(bank, question):
    with pytest.raises(DataError, match=r"a request for classification reads .*; give a text, a pair of texts, or"):
        bank.predict({"classification": [question]})


@pytest.mark.parametrize("limit", [0, 10**9], ids=["on the fly", "kept"])
def test_a_model_of_the_bank_is_saved_with_its_masked_weights(limit, shelf, tmp_path):
    bank = MaskBank(shelf / "base", memory_limit=limit)
    bank.add("one", shelf / "classification")
    bank.use("one").save_pretrained(tmp_path / "saved")
    masked = slimformer.load(shelf / "classification").model.state_dict()
    saved = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").state_dict()
    assert saved.keys() == masked.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in masked.items())
    assert all(torch.equal(tensor, masked[name]) for name, tensor in bank.use("one").state_dict().items())


@pytest.mark.parametrize("limit", [0, 10**9], ids=["on the fly", "kept"])
def test_a_model_of_the_bank_is_cast_alone(limit, shelf):
    bank = MaskBank(shelf / "base", memory_limit=limit)
    for name in ("classification", "regression"):
        bank.add(name, shelf / name)
    asked = {"classification": TEXTS, "regression": TEXTS}
    before, memory = bank.logits(asked), bank.memory()["base"]
    batch = corpus.tokenizer()(TEXTS, padding=True, return_tensors="pt")
    plain = bank.use("classification")
    with torch.no_grad():
        whole = plain(**batch).logits
        cast = bank.use("classification").to(torch.bfloat16)
        torch.testing.assert_close(cast(**batch).logits.float(), whole, rtol=0.1, atol=0.05)
        assert torch.equal(plain(**batch).logits, whole)
    assert cast.dtype == torch.bfloat16
    assert bank.use("classification").dtype == plain.dtype == torch.float32
    assert bank.memory()["base"] == memory
    after = bank.logits(asked)
    assert all(np.array_equal(after[name], before[name]) for name in asked)


@pytest.mark.parametrize("limit", [0, 10**9], ids=["on the fly", "kept"])
@pytest.mark.parametrize("name", ["bert.embeddings.LayerNorm.bias", "bert.pooler.dense.weight", "classifier.bias"])
def test_a_change_in_place_of_what_is_shared_is_told(limit, name, shelf):
    bank = MaskBank(shelf / "base", memory_limit=limit)
    bank.add("one", shelf / "classification")
    model = bank.use("one")
    bank.predict({"one": TEXTS})
    parameter = dict(model.named_parameters())[name]
    assert not parameter.requires_grad
    with torch.no_grad():
        parameter.add_(1)
    for ask in (lambda: bank.use("one"), lambda: bank.predict({"one": TEXTS}), lambda: bank.logits({"one": TEXTS})):
        with pytest.raises(ArtifactError, match=f"`{name}`, which models of the bank share, was changed in place"):
            ask()


def test_a_change_through_one_task_is_told_by_every_other(shelf, bank):
    with torch.no_grad():
        bank.use("classification").bert.embeddings.word_embeddings.weight[3].zero_()
    with pytest.raises(ArtifactError, match=r"word_embeddings\.weight`, which models of the bank share"):
        bank.predict({"regression": TEXTS})


def test_a_copy_of_a_model_may_be_changed(shelf, bank):
    before = bank.logits({"classification": TEXTS})
    own = copy.deepcopy(bank.use("classification"))
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(1)
    after = bank.logits({"classification": TEXTS})
    assert np.array_equal(before["classification"], after["classification"])


def test_a_mask_that_names_outputs_otherwise_than_recorded_is_refused(shelf, bank, tmp_path):
    folder = shutil.copytree(shelf / "classification", tmp_path / "mask")
    labels = json.loads((folder / "config.json").read_text())["id2label"]
    edit(folder / "config.json", id2label={**labels, "0": labels["1"], "1": labels["0"]})
    resum(folder)
    for way in (slimformer.load, slimformer.verify, lambda path: bank.add("swapped", path)):
        with pytest.raises(ArtifactError, match=r"labels of artifact .* are not those recorded|by its config it has"):
            way(folder)


def test_a_tokenizer_put_into_the_folder_of_a_mask_is_refused_as_by_load(shelf, bank, tmp_path):
    folder = shutil.copytree(shelf / "classification", tmp_path / "mask")
    corpus.tokenizer().save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["good"], words["bad"] = words["bad"], words["good"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    resum(folder)
    for way in (slimformer.load, slimformer.verify, lambda path: bank.add("other", path)):
        with pytest.raises(ArtifactError, match=r"vocabulary of artifact .* are not those recorded"):
            way(folder)


def test_one_text_instead_of_a_list(bank):
    with pytest.raises(DataError, match="the requests to task `classification` are one text, `good`; give a list"):
        bank.predict({"classification": "good"})


def test_merging_out_of_the_bank(shelf, bank, tmp_path):
    bank.merge("classification", tmp_path / "plain")
    plain = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").state_dict()
    bank.memory_limit = 10**9
    assert all(torch.equal(plain[name], tensor) for name, tensor in bank.use("classification").state_dict().items())


def test_many_threads(shelf, bank):
    """Predicting, switching, adding and removing at once: every answer is the one a quiet bank gives."""
    asked = {"classification": TEXTS, "regression": TEXTS}
    quiet, wrong, stop = bank.logits(asked), [], threading.Event()

    def ask():
        for _ in range(15):
            found = bank.logits(asked)
            wrong.extend(kind for kind in asked if not np.array_equal(found[kind], quiet[kind]))

    def switch():
        while not stop.is_set():
            for kind in ("tagging", "classification", "pruned"):
                bank.use(kind)(input_ids=torch.ones(1, 5, dtype=torch.long))

    def change():
        while not stop.is_set():
            bank.add("another", shelf / "tagging")
            bank.remove("another")

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(switch), pool.submit(change)]
        askers = [pool.submit(ask), pool.submit(ask)]
        wait(askers)
        stop.set()
    assert [each.exception() for each in (*askers, *others)] == [None] * 4
    assert not wrong
    assert "another" not in bank.tasks


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.TEXTS)
def test_every_family(family, tmp_path):
    """Two tasks on a base of each family, mixed; DeBERTa, whose matrices also see positions, runs them one by one."""
    zoo.build(family).save_pretrained(tmp_path / "base")
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    auto = hf.AutoModelForTokenClassification if family != "gpt_neox" else hf.AutoModelForSequenceClassification
    read = hf.AutoTokenizer.from_pretrained(tmp_path / "base")
    bank = MaskBank(tmp_path / "base")
    for seed in range(2):
        torch.manual_seed(seed)
        padding = {"pad_token_id": 0} if family in zoo.CAUSAL else {}
        model = auto.from_pretrained(tmp_path / "base", num_labels=3, **padding).eval()
        Masking.start(model, MaskConfig(blocks="0-", seed=seed, initial_sparsity=0.3)).end(model)
        kind = "tagging" if family != "gpt_neox" else "classification"
        task = {"name": kind, "kind": kind, "labels": ["a", "b", "c"]}
        step = Step(method="mask")
        save(tmp_path / f"{seed}", model, base=tmp_path / "base", processor=read, step=step, task=task, storage="mask")
        bank.add(f"{seed}", tmp_path / f"{seed}")
    found = bank.logits({"0": TEXTS, "1": TEXTS[:2]})
    for name, rows in found.items():
        model = bank.use(name)
        for text, row in zip(TEXTS, rows, strict=False):
            with torch.no_grad():
                wanted = model(**read(text, return_tensors="pt")).logits[0]
            torch.testing.assert_close(torch.from_numpy(row)[: len(wanted)], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("own", ["pooler", "norm"])
def test_a_task_with_tensors_of_its_own_inside_the_base(own, tmp_path):
    """A pooler that the base lacks, and a norm that is another than the base's: its rows are mixed with no others."""
    base = tmp_path / "base"
    config = hf.BertConfig.from_pretrained(corpus.model_folder(tmp_path / "plain"))
    zoo.enliven((hf.BertForMaskedLM if own == "pooler" else hf.BertModel)(config)).save_pretrained(base)
    corpus.tokenizer().save_pretrained(base)
    model = hf.BertForSequenceClassification.from_pretrained(base, num_labels=3).eval()
    Masking.start(model, MaskConfig(blocks="0-", initial_sparsity=0.3)).end(model)
    if own == "norm":
        with torch.no_grad():
            model.bert.encoder.layer[0].output.LayerNorm.weight.neg_()
    task = {"name": "classification", "kind": "classification", "labels": ["a", "b", "c"]}
    read = models.load_processor(base)
    save(tmp_path / "out", model, base=base, processor=read, step=Step(method="mask"), task=task, storage="mask")
    assert any(name.startswith("bert.") for name in MaskFile.read(tmp_path / "out" / "mask.safetensors").whole)
    bank = MaskBank(base)
    bank.add("one", tmp_path / "out")
    for text, row in zip(TEXTS, bank.logits({"one": TEXTS})["one"], strict=True):
        with torch.no_grad():
            wanted = model(**read(text, return_tensors="pt")).logits[0]
        torch.testing.assert_close(torch.from_numpy(row), wanted, rtol=1e-3, atol=1e-6)


def test_images(tmp_path):
    zoo.build("vit").save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}'
    )
    from slimformer.tasks.readers.idx import ImageArray

    model = hf.ViTForImageClassification.from_pretrained(tmp_path / "base", num_labels=2).eval()
    Masking.start(model, MaskConfig(blocks="0-")).end(model)
    task = {"name": "image-classification", "kind": "image-classification", "labels": ["cat", "dog"]}
    processor = models.load_processor(tmp_path / "base")
    save(
        tmp_path / "out",
        model,
        base=tmp_path / "base",
        processor=processor,
        step=Step(method="mask"),
        task=task,
        storage="mask",
    )
    bank = MaskBank()
    bank.add("pets", tmp_path / "out")
    image = ImageArray(torch.randint(0, 255, (16, 16, 3), dtype=torch.uint8).numpy(), "here")
    (answer,) = bank.predict({"pets": [image]})["pets"]
    assert answer["label"] in ("cat", "dog")


@pytest.mark.slow
def test_the_bank_does_not_import_training():
    training = "('slimformer.train', 'slimformer.methods')"
    code = f"import sys, slimformer.bank; print([name for name in sys.modules if name.startswith({training})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_minilm(tmp_path):
    data = corpus.data_folder(tmp_path / "data", train=8, dev=4)
    common = {"task": "classification", "data": data, "batch_size": 4, "max_steps": 1, "quiet": True}
    result = slimformer.mask(model="minilm", out=tmp_path / "out", **common)
    bank = MaskBank("minilm")
    bank.add("one", tmp_path / "out")
    bank.add("two", tmp_path / "out")
    one, two = bank.predict({"one": TEXTS, "two": TEXTS[:1]}).values()
    assert one[0]["probability"] == pytest.approx(two[0]["probability"], abs=1e-6)
    batch = result.processor(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(bank.use("one")(**batch).logits, result.model(**batch).logits)


@pytest.mark.slow
def test_text_is_generated_through_masks(tmp_path):
    """Each task goes on with a text as its own model does, one token after the other, whatever runs beside it."""
    base, data = runs.decoder(tmp_path / "base"), tmp_path / "data"
    data.mkdir()
    for split in ("train", "dev"):
        (data / f"{split}.txt").write_text("the film was good and the end was bad\n" * 8)
    bank = MaskBank(base)
    for seed in (0, 1):
        settings = {"model": base, "task": "language-modelling", "data": data, "max_length": 16, "seed": seed}
        slimformer.mask(**settings, **{**QUICK, "blocks": "0-", "lr": 0.2}, out=tmp_path / str(seed))
        bank.add(str(seed), tmp_path / str(seed))
    asked = ["the film was", "a", "very good " * 30]
    answers = bank.predict({"0": asked, "1": asked[::-1]})
    answers["1"].reverse()
    for task in ("0", "1"):
        loaded = slimformer.load(tmp_path / task)
        for text, answer in zip(asked, answers[task], strict=True):
            ids = loaded.processor(text)["input_ids"][:-1]  # without [SEP]
            ids = ids if len(ids) <= 32 else [ids[0], *ids[-31:]]  # 64 positions for text and answer
            added = _continued(loaded.model, ids, 32)
            assert answer["text"] == loaded.processor.decode(added, skip_special_tokens=True)
        assert answers[task] == open_pipeline(tmp_path / task)(asked)
    assert answers["0"] != answers["1"]


@torch.no_grad()
def _continued(model, ids, count):
    """The likeliest tokens after some others, the whole text read anew for each."""
    added = []
    for _ in range(count):
        token = int(model(input_ids=torch.tensor([[*ids, *added]])).logits[0, -1].argmax())
        if token == model.config.eos_token_id:
            break
        added.append(token)
    return added


@pytest.mark.slow
def test_tasks_that_pad_differently_do_not_share_batches(tmp_path):
    """Words are tagged at positions counted from the left; another task's padding must not move them."""
    from tests import runs

    runs.decoder(tmp_path / "base")
    reader = hf.AutoTokenizer.from_pretrained(tmp_path / "base", padding_side="left")
    reader.save_pretrained(tmp_path / "base")
    for kind in ("classification", "tagging"):
        (tmp_path / f"{kind}-data").mkdir()
        data = generated(kind, tmp_path / f"{kind}-data")
        slimformer.mask(model=tmp_path / "base", task=kind, data=data, out=tmp_path / kind, **QUICK)
    bank = MaskBank()
    for kind in ("classification", "tagging"):
        bank.add(kind, tmp_path / kind)
    together = bank.predict({"classification": TEXTS, "tagging": TEXTS})
    for kind in ("classification", "tagging"):
        alone = bank.predict({kind: TEXTS})[kind]
        assert [answer if kind == "tagging" else answer["label"] for answer in alone] == [
            answer if kind == "tagging" else answer["label"] for answer in together[kind]
        ]


@pytest.mark.slow
def test_a_base_in_16_bits_is_asked_in_32(tmp_path):
    corpus.model_folder(tmp_path / "plain")
    half = hf.AutoModel.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16)
    save(tmp_path / "base", half, processor=corpus.tokenizer(), step=Step(method="finetune"))
    (tmp_path / "data").mkdir()
    data = generated("classification", tmp_path / "data")
    slimformer.mask(model=tmp_path / "base", task="classification", data=data, out=tmp_path / "mask", **QUICK)
    bank = MaskBank()
    bank.add("one", tmp_path / "mask")
    assert len(bank.predict({"one": TEXTS})["one"]) == len(TEXTS)


@pytest.mark.parametrize(("factor", "reason"), [(float("nan"), "holds nan or infinity"), (2.0, "outputs recorded")])
def test_a_mask_whose_head_was_changed_is_refused_as_by_load(factor, reason, shelf, tmp_path):
    """Also where whoever changed it made all sums agree."""
    folder = shutil.copytree(shelf / "classification", tmp_path / "mask")
    file = MaskFile.read(folder / "mask.safetensors")
    replace(file, whole={name: factor * tensor for name, tensor in file.whole.items()}).write(
        folder / "mask.safetensors"
    )
    resum(folder)
    for opened in (lambda: slimformer.load(folder), lambda: MaskBank(shelf / "base").add("task", folder)):
        with pytest.raises(ArtifactError, match=reason):
            opened()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": []}, r"it must name the one class"),
        (
            {"quantization_config": {"quant_method": "slimformer", "version": 2, "layouts": []}},
            "tells of packed weights",
        ),
    ],
)
def test_a_mask_whose_config_is_of_another_model_is_refused_as_by_load(shelf, tmp_path, values, message):
    folder = shutil.copytree(shelf / "classification", tmp_path / "mask")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    agree(folder)
    with pytest.raises(ArtifactError, match=message):
        MaskBank().add("task", folder)
    with pytest.raises(ArtifactError):
        slimformer.load(folder)


def test_a_head_stored_in_another_type_is_cast_as_by_load(shelf, tmp_path):
    folder = shutil.copytree(shelf / "classification", tmp_path / "mask")
    path = folder / "mask.safetensors"
    file = MaskFile.read(path)
    replace(file, whole={name: tensor.double() for name, tensor in file.whole.items()}).write(path)
    agree(folder)
    bank = MaskBank()
    bank.add("task", folder)
    assert bank.predict({"task": TEXTS}) == {"task": open_pipeline(folder)(TEXTS)}
