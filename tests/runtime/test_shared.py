"""Tasks that share an encoder against encoders of their own, whose weights are masked one by one."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf

from slimformer.errors import DataError
from slimformer.runtime.building import ModelParts
from slimformer.runtime.checkpoint import EngineError, read_tensors
from slimformer.runtime.encoder import NativeEncoder
from slimformer.runtime.native import is_built, kernels
from slimformer.runtime.shared import SharedEncoder, TaskParts
from tests import zoo

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

#: Inputs of the last matrix are so many that a gap between two dropped ones may take more than a byte.
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 700}
SEQUENCES = [[3, 4, 5], [6] * 40, [7], [8, 9] * 9, [10, 11], [12] * 17]
#: Weights that tasks mask: of queries without keys and values, of all of a block, and the layer that pools.
MASKED = (
    "encoder.layer.0.attention.self.query",
    "encoder.layer.1.attention.self.key",
    "encoder.layer.1.attention.output.dense",
    "encoder.layer.1.intermediate.dense",
    "encoder.layer.1.output.dense",
    "pooler.dense",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    torch.manual_seed(0)
    zoo.enliven(hf.BertModel(hf.BertConfig(vocab_size=40, max_position_embeddings=48, **SIZES))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def shared(folder):
    return SharedEncoder(folder, config_of(folder), threads=1)


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def parts_of(folder, seed, dropped, ending="ForSequenceClassification"):
    """A task that drops a share of some weights."""
    draw = np.random.default_rng(seed)
    tensors = read_tensors(folder)
    kept = {
        f"{name}.weight": (draw.random(tensors[f"{name}.weight"].shape) >= dropped).astype(np.uint8) for name in MASKED
    }
    if not ending.startswith("ForSequence"):
        del kept["pooler.dense.weight"]
    layer = "qa_outputs" if ending == "ForQuestionAnswering" else "classifier"
    outputs = 2 if layer == "qa_outputs" else 3 + seed
    own = {
        f"{layer}.weight": draw.standard_normal((outputs, 32)).astype(np.float32),
        f"{layer}.bias": draw.standard_normal(outputs).astype(np.float32),
    }
    config = {**config_of(folder), "architectures": [f"Bert{ending}"]}
    return TaskParts(f"task{seed}", config, kept, own, "bert.")


def by_itself(folder, parts):
    """An encoder whose weights are masked."""
    tensors = {f"bert.{name}": tensor for name, tensor in read_tensors(folder).items()}
    for name, kept in parts.kept.items():
        tensors[f"bert.{name}"] = tensors[f"bert.{name}"] * kept
    return NativeEncoder(ModelParts(parts.name, parts.config, {**tensors, **parts.own}), threads=1)


ENDINGS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


@pytest.mark.parametrize("dropped", [0.0, 0.003, 0.05, 0.5, 0.97, 1.0])
def test_a_task_computes_what_its_masked_weights_do(folder, shared, dropped):
    parts = [parts_of(folder, seed, dropped, ending) for seed, ending in enumerate(ENDINGS)]
    tasks = [shared.task(each) for each in parts]
    order = [0, 0, 1, 2, 1, 0]
    found = shared.run_tasks(SEQUENCES, [tasks[number] for number in order])
    for number, sequence, answer in zip(order, SEQUENCES, found, strict=True):
        expected = by_itself(folder, parts[number]).run([sequence])
        assert answer.shape == expected.shape
        assert np.abs(answer - expected).max() < 2e-5 * max(1, np.abs(expected).max())


def test_the_bits_are_those_of_a_sequence_alone(folder, shared):
    tasks = [shared.task(parts_of(folder, seed, 0.1, ending)) for seed, ending in enumerate(ENDINGS)]
    order = [0, 1, 2, 0, 1, 2]
    chosen = [tasks[number] for number in order]
    alone = [shared.run_tasks([each], [task])[0] for each, task in zip(SEQUENCES, chosen, strict=True)]
    for isa in kernels().instruction_sets():
        for threads in (1, 2):
            shared.instruction_set, shared.threads = isa, threads
            mixed = shared.run_tasks(SEQUENCES * 9, chosen * 9)  # more rows than are multiplied at once
            back = shared.run_tasks(SEQUENCES[::-1], chosen[::-1])[::-1]
            for one, two in zip(alone * 10, mixed + back, strict=True):
                assert np.array_equal(one.view(np.int32), two.view(np.int32))


def test_a_task_that_drops_nothing_has_the_bits_of_the_encoder(folder, shared):
    parts = parts_of(folder, 1, 0.0)
    (answer,) = shared.run_tasks([SEQUENCES[1]], [shared.task(parts)])
    assert np.array_equal(answer, by_itself(folder, parts).run([SEQUENCES[1]]))


def test_masks_take_a_byte_for_each_dropped_weight(folder, shared):
    parts = parts_of(folder, 2, 0.05)
    dropped = sum(int((each == 0).sum()) for each in parts.kept.values())
    task = shared.task(parts)
    outputs = 3 * 32 + 3 * 32 + 32 + 700 + 32 + 32  # whose lists begin somewhere and are of dropped ones, or of kept
    assert dropped + 5 * outputs <= task.mask_bytes < 1.02 * dropped + 5 * outputs + 4 * len(parts.kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder.layer.2.output.dense.weight": np.ones((32, 700), np.uint8)}, "changes `encoder.layer.2.output"),
        ({"encoder.layer.1.output.dense.weight": np.ones((32, 64), np.uint8)}, r"is uint8 of shape \[32, 64\]"),
        ({"encoder.layer.1.output.dense.weight": np.ones((32, 700), np.int64)}, r"is int64 of shape"),
        ({"embeddings.word_embeddings.weight": np.ones((40, 32), np.uint8)}, "changes `embeddings.word_embeddings"),
    ],
)
def test_what_tasks_cannot_change_is_refused(folder, shared, change, message):
    parts = parts_of(folder, 1, 0.1)
    with pytest.raises(EngineError, match=message):
        shared.task(replace(parts, kept={**parts.kept, **change}))


def test_tensors_and_heads_that_do_not_fit_are_refused(folder, shared):
    parts = parts_of(folder, 1, 0.1)
    norm = {"bert.embeddings.LayerNorm.weight": np.ones(32, np.float32)}
    with pytest.raises(EngineError, match=r"changes `bert.embeddings.LayerNorm.weight`"):
        shared.task(replace(parts, own={**parts.own, **norm}))
    with pytest.raises(EngineError, match=r"has no `classifier`"):
        shared.task(replace(parts, own={}))
    with pytest.raises(EngineError, match="has no head of `BertForMultipleChoice`"):
        shared.task(replace(parts, config={**parts.config, "architectures": ["BertForMultipleChoice"]}))


def test_an_own_pooling_layer_takes_the_place_of_the_shared_one(folder, shared):
    parts = parts_of(folder, 1, 0.1)
    kept = {name: each for name, each in parts.kept.items() if not name.startswith("pooler")}
    draw = np.random.default_rng(5)
    pooler = {
        "bert.pooler.dense.weight": draw.standard_normal((32, 32)).astype(np.float32),
        "bert.pooler.dense.bias": draw.standard_normal(32).astype(np.float32),
    }
    parts = replace(parts, kept=kept, own={**parts.own, **pooler})
    (answer,) = shared.run_tasks([SEQUENCES[3]], [shared.task(parts)])
    np.testing.assert_allclose(answer, by_itself(folder, parts).run([SEQUENCES[3]]), rtol=2e-5, atol=2e-5)


def test_inputs_that_do_not_fit_are_refused(folder, shared, tmp_path):
    task = shared.task(parts_of(folder, 1, 0.1))
    for sequences, tasks in (([[1], [2]], [task]), ([[1]], [task, task]), ([[99]], [task]), ([[1] * 60], [task])):
        with pytest.raises(DataError, match="the engine was given"):
            shared.run_tasks(sequences, tasks)
    smaller = {**SIZES, "intermediate_size": 64}
    hf.BertModel(hf.BertConfig(vocab_size=40, max_position_embeddings=48, **smaller)).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="a mask of 700 x 32 for a matrix of 64 x 32"):
        SharedEncoder(tmp_path, config_of(tmp_path)).run_tasks([[1]], [task])
    one = {**SIZES, "num_hidden_layers": 1}
    hf.BertModel(hf.BertConfig(vocab_size=40, max_position_embeddings=48, **one)).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="a task of 2 blocks of 32 on an encoder of 1 of 32"):
        SharedEncoder(tmp_path, config_of(tmp_path)).run_tasks([[1]], [task])
