"""The loop itself: what it computes, however it is split up, and when it refuses to go on."""

from __future__ import annotations

import copy
import math
from functools import cached_property

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

from slimformer import Anatomy
from slimformer.errors import TrainingError
from slimformer.train import Loss, TrainingOptions, train
from slimformer.train.checkpoints import read_weights, write_weights
from slimformer.train.loop.sampler import EpochSampler
from slimformer.views import MaskView, QuantizedView, attach, slice_neurons, uniform_scores
from tests import corpus, zoo


def features(count=24, length=6, labels=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 99, (count, length), generator=generator)
    return [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": int(row.sum()) % labels} for row in ids
    ]


def collate(items):
    return {
        "input_ids": torch.stack([item["input_ids"] for item in items]),
        "attention_mask": torch.stack([item["attention_mask"] for item in items]),
        "labels": torch.tensor([item["labels"] for item in items]),
    }


def still(family="bert"):
    """A model without dropout, so that runs that should agree can be compared."""
    model = zoo.build_headed(family)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def options(**settings):
    return TrainingOptions(**{"max_steps": 6, "batch_size": 8, "lr": 1e-3, "log_every": 1, "threads": 1, **settings})


def losses(trained):
    return [entry["loss"] for entry in trained.log if "loss" in entry]


def run(model, folder, **settings):
    return train(model, options(**settings), features(), collate, folder, quiet=True)


def test_equals_a_bare_loop(tmp_path):
    """Against the obvious loop, step by step: order of examples, AdamW, warm-up, decay, clipping."""
    model, twin = still(), still()
    trained = run(model, tmp_path, warmup=0.5, weight_decay=0.1)
    data = features()
    decayed = {id(module.weight) for module in twin.modules() if isinstance(module, nn.Linear | nn.Embedding)}
    groups = [
        {"params": [p for p in twin.parameters() if id(p) in decayed], "weight_decay": 0.1},
        {"params": [p for p in twin.parameters() if id(p) not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    expected = []
    for step in range(6):
        sampler = EpochSampler(24, seed=0)
        sampler.set_epoch(step // 3)
        batch = collate([data[index] for index in list(sampler)[(step % 3) * 8 : (step % 3) * 8 + 8]])
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (step / 3 if step < 3 else (6 - step) / 3)
        twin.train()
        loss = twin(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses(trained) == pytest.approx(expected, rel=1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding, which Adam blows up
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_changes_nothing(tmp_path, accumulation):
    model, twin = still(), still()
    whole = run(model, tmp_path / "a")
    parts = run(twin, tmp_path / "b", accumulation=accumulation)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["roberta", "llama", "gpt2"])
def test_accumulation_weighs_tokens_and_not_parts(tmp_path, family):
    """Texts of different lengths: the loss is a mean over the tokens of the batch, however it is cut."""
    items = []
    for index, item in enumerate(features()):
        labels = item["input_ids"] % 2
        labels[: index % 5] = -100
        items.append({**item, "labels": labels})

    def stack(some):
        return {name: torch.stack([item[name] for item in some]) for name in some[0]}

    whole = train(still(family), options(), items, stack, tmp_path / "a", quiet=True)
    parts = train(still(family), options(accumulation=4), items, stack, tmp_path / "b", quiet=True)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)


def test_what_a_loss_is_a_mean_over_may_be_told(tmp_path):
    """A loss over words that stand in the batch: the loop weighs its parts by them, and not by examples."""
    words = [{**item, "words": index % 5 + 1} for index, item in enumerate(features())]

    def with_words(items):
        return {**collate(items), "words": torch.tensor([item["words"] for item in items])}

    def objective(model, inputs):
        weights = inputs["words"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        each = nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
        return Loss((each * weights).sum() / weights.sum())

    def once(name, **settings):
        loop = {"objective": objective, "items": lambda inputs: int(inputs["words"].sum()), "quiet": True}
        return losses(train(still(), options(**settings), words, with_words, tmp_path / name, **loop))

    assert once("parts", accumulation=4) == pytest.approx(once("whole"), rel=1e-5)


def test_gradient_checkpointing_changes_nothing(tmp_path):
    whole = run(still(), tmp_path / "a")
    thrifty = run(still(), tmp_path / "b", gradient_checkpointing=True)
    assert losses(thrifty) == pytest.approx(losses(whole), rel=1e-6)


def test_gradient_checkpointing_keeps_the_widths_of_a_block_that_has_ended(tmp_path):
    def once(name, **settings):
        model = still()
        width = slice_neurons(Anatomy.of(model).blocks[0])

        def narrow(called, inputs):
            with width.at(8):  # the backward comes after it
                return Loss(called(**inputs).loss)

        loop = {"objective": narrow, "quiet": True}
        trained = train(model, options(**settings), features(), collate, tmp_path / name, **loop)
        return losses(trained), [each.detach() for each in model.parameters()]

    whole, weights = once("whole")
    thrifty, same = once("thrifty", gradient_checkpointing=True)
    assert thrifty == pytest.approx(whole, rel=1e-6)
    for one, other in zip(weights, same, strict=True):
        torch.testing.assert_close(other, one)


def test_bf16_trains(tmp_path):
    model = still()
    trained = run(model, tmp_path, bf16=True)
    assert all(math.isfinite(loss) for loss in losses(trained))
    assert next(model.parameters()).dtype == torch.float32
    assert losses(trained) == pytest.approx(losses(run(still(), tmp_path / "b")), abs=0.05)


def test_trained_in_bf16_a_model_computes_in_float32_again(tmp_path):
    model, plain = still(), still()
    run(model, tmp_path, bf16=True)
    plain.load_state_dict(model.state_dict())
    batch = torch.stack([item["input_ids"] for item in features()])
    for each in (model, copy.deepcopy(model)):
        assert torch.equal(each.eval()(batch).logits, plain.eval()(batch).logits)


def test_an_objective_with_a_teacher_and_views(tmp_path):
    """The extension point: no subclass, a teacher in the objective, views on the model."""
    teacher, student = still(), still()
    teacher.requires_grad_(False)
    for block in Anatomy.of(student).blocks:
        attach(block.up, QuantizedView("ternary"))
    stored = copy.deepcopy(student.state_dict())

    def objective(model, inputs):
        with torch.no_grad():
            wanted = teacher(**inputs).logits
        outputs = model(**inputs)
        apart = (outputs.logits - wanted).square().mean()
        return Loss(outputs.loss * 0 + apart, {"apart": apart, "label": outputs.loss})

    trained = train(student, options(max_steps=20), features(), collate, tmp_path, objective=objective, quiet=True)
    first, last = (
        next(iter(log))
        for log in ([e for e in trained.log if "apart" in e], [e for e in trained.log[::-1] if "apart" in e])
    )
    assert last["apart"] < first["apart"]
    assert first["loss"] == pytest.approx(first["apart"], rel=1e-5)
    changed = [name for name, value in student.state_dict().items() if not torch.equal(value, stored[name])]
    assert any("parametrizations.weight.original" in name for name in changed)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_the_run(tmp_path, bad):
    def objective(model, inputs):
        return Loss(model(**inputs).loss * bad)

    with pytest.raises(TrainingError, match=r"the loss became (nan|inf) at step 1 .* lower `--lr`"):
        train(still(), options(), features(), collate, tmp_path, objective=objective, quiet=True)


def test_the_best_weights_are_kept(tmp_path):
    scores = iter([0.5, 0.9, 0.7])
    seen = []

    def evaluation(model):
        seen.append(copy.deepcopy(model.state_dict()))
        return {"score": next(scores)}

    model = still()
    trained = train(
        model, options(eval_every=2), features(), collate, tmp_path, evaluation=evaluation, primary="score", quiet=True
    )
    assert trained.kept_step == 4
    assert all(torch.equal(value, seen[1][name]) for name, value in model.state_dict().items())
    scores = iter([0.5, 0.9, 0.7])
    last = train(
        still(), options(eval_every=2, best=False), features(), collate, tmp_path / "last", evaluation=evaluation,
        primary="score", quiet=True,
    )  # fmt: skip
    assert last.kept_step == 6


@pytest.mark.parametrize("quiet", [True, False])
def test_of_several_gpus_one_is_used(quiet, tmp_path, monkeypatch, capsys):
    """On a machine with two, the loop of Transformers would take two batches at each step."""
    set_up = TrainingArguments._setup_devices.func

    def with_two(arguments):
        device = set_up(arguments)
        arguments._n_gpu = 2
        return device

    alone = run(still(), tmp_path / "one")
    several = cached_property(with_two)
    several.__set_name__(TrainingArguments, "_setup_devices")
    monkeypatch.setattr(TrainingArguments, "_setup_devices", several)
    trained = train(still(), options(), features(), collate, tmp_path / "two", quiet=quiet)
    assert losses(trained) == losses(alone)
    told = (
        "note: of 2 GPUs one is used; `accelerate launch --multi_gpu --num_processes 2 -m slimformer …` uses them all"
    )
    assert (told in capsys.readouterr().err.splitlines()) is not quiet


def test_smaller_may_be_better(tmp_path):
    scores = iter([0.5, 0.1, 0.7])
    trained = train(
        still(), options(eval_every=2), features(), collate, tmp_path, evaluation=lambda _: {"loss": next(scores)},
        primary="loss", greater_is_better=False, quiet=True,
    )  # fmt: skip
    assert trained.kept_step == 4


def test_a_batch_that_cannot_be_split_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="`batch_size` 8 cannot be split over 1 processes x 3"):
        run(still(), tmp_path, accumulation=3)


def test_weights_with_views_and_ties_survive_a_file(tmp_path):
    model, twin = zoo.build_headed("gpt2"), zoo.build_headed("gpt2", seed=4)
    for each in (model, twin):
        block = Anatomy.of(each).blocks[0]
        torch.manual_seed(len(str(id(each))))
        attach(block.query, MaskView(uniform_scores(block.query.shape, 0.5)))
        slice_neurons(block).set(20 if each is model else 30)
    write_weights(model, tmp_path / "w.safetensors")
    read_weights(twin, tmp_path / "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    assert twin.lm_head.weight is twin.transformer.wte.weight
    with pytest.raises(TrainingError, match=r"another model|this model has not"):
        read_weights(zoo.build("bert"), tmp_path / "w.safetensors")


def test_the_order_of_examples_is_a_function_of_seed_and_epoch():
    orders = {}
    for seed in (0, 1):
        for epoch in (0, 1):
            sampler = EpochSampler(50, seed)
            sampler.set_epoch(epoch)
            assert sorted(sampler) == list(range(50))
            assert list(sampler) == list(sampler)
            orders[seed, epoch] = tuple(sampler)
    assert len(set(orders.values())) == 4


class StopNowError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 3, 5])
def test_data_drawn_anew_each_epoch_is_the_same_after_an_interruption(tmp_path, stop):
    """Masked language modelling with the real masking: interrupted at a step, resumed from the checkpoint before."""
    from slimformer.tasks import get_task

    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(corpus.WORDS[i % 7 : i % 7 + 9]) for i in range(60)) + "\n")
    base = corpus.model_folder(tmp_path / "base")
    tokenizer = corpus.tokenizer()
    data = get_task("language-modelling").load(str(text), ("train",), objective="masked")

    def once(folder, stop_at=None):
        torch.manual_seed(0)
        model = data.model_class().from_pretrained(base)
        seen = []

        def objective(current, inputs):
            if len(seen) == stop_at:
                raise StopNowError
            seen.append(inputs["labels"].clone())
            return Loss(current(**inputs).loss)

        settings = options(save_every=1, max_steps=7)
        items = data.prepare("train", tokenizer, 16)
        collator = data.collator(tokenizer)
        train(model, settings, items, collator, folder, objective=objective, quiet=True)
        return model.state_dict(), seen

    whole, shown = once(tmp_path / "a")
    with pytest.raises(StopNowError):
        once(tmp_path / "b", stop)
    resumed, rest = once(tmp_path / "b")
    assert len(rest) == 7 - stop
    assert all(torch.equal(value, whole[name]) for name, value in resumed.items())
    assert all(torch.equal(a, b) for a, b in zip(shown[stop:], rest, strict=True))
    assert not torch.equal(shown[0], shown[-1])


def test_grouping_by_length_spares_padding_and_keeps_every_example():
    lengths = torch.randint(1, 60, (500,), generator=torch.Generator().manual_seed(0)).tolist()

    def padding(order):
        batches = [order[start : start + 8] for start in range(0, 500, 8)]
        return sum(max(lengths[i] for i in batch) * len(batch) - sum(lengths[i] for i in batch) for batch in batches)

    plain, grouped = list(EpochSampler(500, 0)), list(EpochSampler(500, 0, lengths, batch=8))
    assert sorted(grouped) == list(range(500))
    assert padding(grouped) < padding(plain) / 5
    assert lengths[grouped[0]] == max(lengths)
    other = EpochSampler(500, 0, lengths, batch=8)
    other.set_epoch(1)
    assert list(other) != grouped


def test_tensorboard_gets_the_losses(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained = run(still(), tmp_path / "run", tensorboard=str(tmp_path / "events"))
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses(trained), rel=1e-5)


def test_threads_and_verbosity_are_as_before(tmp_path):
    from transformers.utils import logging

    logging.set_verbosity_info()
    try:
        run(still(), tmp_path, threads=2, max_steps=1)
        assert torch.get_num_threads() == 1
        assert logging.get_verbosity() == logging.INFO
    finally:
        logging.set_verbosity_warning()
