"""One tiny artifact, saved once and copied by the tests that harm it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

from slimformer.artifact import Step, save
from tests.zoo import enliven

if TYPE_CHECKING:
    from pathlib import Path

STEP = Step(method="finetune", config={"epochs": 1, "learning_rate": 2e-5}, seed=0, duration_s=1.5)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "film", "dull", "one"]


def tiny_bert(head: type = hf.BertForSequenceClassification, seed: int = 0, **changes: object) -> hf.PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    settings = {**sizes, "vocab_size": 40, "max_position_embeddings": 20, "num_labels": 3, **changes}
    return enliven(head(hf.BertConfig(**settings))).eval()


def tiny_tokenizer() -> hf.PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact") / "sst2"
    save(
        folder,
        tiny_bert(),
        processor=tiny_tokenizer(),
        step=STEP,
        metrics={"sst2/dev": {"accuracy": 0.89}},
        task={"name": "sst2", "kind": "classification", "labels": ["bad", "good", "neither"]},
    )
    return folder


@pytest.fixture
def artifact(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")
