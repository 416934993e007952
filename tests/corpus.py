"""A tiny model folder with a real tokenizer, and data for it: everything a run needs, made in a second."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [
    *("good", "fine", "great", "lovely", "bad", "awful", "poor", "dull"),
    *("the", "a", "film", "plot", "cast", "was", "is", "very", "not", "and", "but", "end"),
]
POSITIVE = WORDS[:4]
#: Words that MiniLM's tokenizer splits into several pieces.
DOMAIN = ("lemmatizers", "treebanks", "subcategorization", "anaphoric", "morphosyntax", "hyponyms")


def tokenizer() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    built = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=built, mask_token="[MASK]", model_max_length=64, **names)


def model_folder(folder: Path, dropout: float = 0.1) -> Path:
    """A random BERT of 2 blocks with its tokenizer, as `save_pretrained` writes it."""
    import torch

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=5 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def data_folder(folder: Path, train: int = 96, dev: int = 32) -> Path:
    """Sentences with a good or a bad word in them, as train.tsv and dev.tsv."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for split, count in (("train", train), ("dev", dev)):
        lines = ["text\tlabel"]
        for _ in range(count):
            word = rng.choice(WORDS[:8])
            text = rng.choices(WORDS[8:], k=rng.randint(2, 9))
            text.insert(rng.randrange(len(text) + 1), word)
            lines.append(f"{' '.join(text)}\t{'yes' if word in POSITIVE else 'no'}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def domain_file(path: Path, lines: int = 120) -> Path:
    """Lines of a domain, no two alike."""
    rng = random.Random(0)
    texts = [f"The {rng.choice(DOMAIN)} of {number} and {' '.join(rng.sample(DOMAIN, 3))}." for number in range(lines)]
    path.write_text("\n".join(texts) + "\n")
    return path
