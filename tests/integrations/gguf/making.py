"""Small models with tokenizers of the four sorts that llama.cpp knows, learned from a few sentences."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests import zoo

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SENTENCES = [
    "the film was a lovely film and the plot was not very good",
    "Once upon a time there was a little girl, and she didn't like 1234 cats!",
    "naïve café résumés are über-expensive — isn't that so?",
    "a good cast, a bad plot: 3.5 stars; the end\n\nwas dull",
] * 4
#: Texts with blanks, accents, digits, contractions, several scripts and what no piece stands for.
TEXTS = [
    "the film was good",
    "  They'll say: I'm 12345 years old,\n\n isn't it?  ",
    "Café NAÏVE — 東京 привет 😀",
    "x",
]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _splits(pattern: str) -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


#: What llama.cpp calls rules of splitting → the steps that are those rules.
RULES = {
    "gpt-2": lambda: [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": lambda: [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "qwen2": lambda: _splits(QWEN),
    "llama-bpe": lambda: _splits(QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")),
}


def byte_level(rules: str = "gpt-2", framed: bool = False) -> PreTrainedTokenizerFast:
    """Merges of bytes; `framed` puts a token before and behind each text, as RoBERTa does."""
    built = Tokenizer(models.BPE(ignore_merges=rules == "llama-bpe"))
    built.pre_tokenizer = pre_tokenizers.Sequence(RULES[rules]())
    built.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    built.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=alphabet)
    )
    if framed:
        built.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=built, **names)


def sentence_piece(prefix: bool = True) -> PreTrainedTokenizerFast:
    """Merges of characters, with bytes for those that are rare; `prefix` puts a blank before a text."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    built = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    blanks = normalizers.Replace(" ", "\u2581")
    built.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), blanks]) if prefix else blanks
    built.train_from_iterator(
        # Words learn merges of their own: without a split a merge could be a sentence.
        [word for sentence in SENTENCES for word in sentence.split()],
        trainers.BpeTrainer(vocab_size=len(special) + 90, special_tokens=special, limit_alphabet=60),
    )
    rules = built.to_str()
    # The trainer takes bytes for special tokens, which they are not.
    built = _without_added(rules, keep=3)
    built.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=built, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _without_added(rules: str, keep: int) -> Tokenizer:
    content = json.loads(rules)
    content["added_tokens"] = content["added_tokens"][:keep]
    return Tokenizer.from_str(json.dumps(content))


def word_piece(lowercase: bool = True) -> PreTrainedTokenizerFast:
    """Words cut into pieces, as BERT has them."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    built = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=built, mask_token="[MASK]", **names)


def _blanks_for_lines() -> bytes:
    """A table as SentencePiece compiles it, which makes a line feed a blank: a trie of one path and its value."""
    trie = np.zeros(1024, np.uint32)
    base, leaf, line = 256, 512, ord("\n")
    trie[0] = base << 10
    trie[base ^ line] = line | 1 << 8 | leaf << 10
    trie[base ^ line ^ leaf] = 1 << 31
    return np.uint32(trie.nbytes).tobytes() + trie.tobytes() + b" \0"


def unigram() -> PreTrainedTokenizerFast:
    """The likeliest pieces, as XLM-RoBERTa has them."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    built = Tokenizer(models.Unigram())
    built.normalizer = normalizers.Precompiled(_blanks_for_lines())
    built.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    built.train_from_iterator(
        SENTENCES, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    )
    built.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    built.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=built, mask_token="<mask>", **names)


def model(family: str, architecture: Any, processor: PreTrainedTokenizerFast, **settings: Any) -> PreTrainedModel:
    """A random model of a family, with a few rows more than its tokenizer has tokens."""
    config = zoo.CONFIGS[family]()
    special = {"bos_token_id": None, "eos_token_id": None}
    for name, value in {"vocab_size": len(processor) + 3, **special, **settings}.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    return zoo.enliven(architecture(config)).eval()
