"""Tokenizers of every kind: trained on Python's own docstrings, or drawn at random to be as awkward as can be."""

from __future__ import annotations

import ast
import random
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertTokenizer,
    BertTokenizer,
    DebertaV2Tokenizer,
    GemmaTokenizer,
    GPT2Tokenizer,
    GPTNeoXTokenizer,
    LlamaTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
#: Not ASCII, whose characters always stay.
LETTERS = "αβγδ"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@cache
def docstrings(limit: int | None = None) -> list[str]:
    """Docstrings of the modules of Python's standard library: text that is on every machine."""
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:limit]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                texts.append(text)
    return texts


def trained(kind: str, size: int) -> dict[str, Any]:
    """The model of a tokenizer trained on docstrings, as in tokenizer.json."""
    import json

    core, trainer = TRAINING[kind]()
    core.train_from_iterator(docstrings(40), trainer(size))
    return json.loads(core.to_str())["model"]


def _wordpiece() -> Any:
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return core, lambda size: trainers.WordPieceTrainer(vocab_size=size, special_tokens=BERT, show_progress=False)


def _byte_bpe(special: list[str]) -> Any:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return core, lambda size: trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )


def _llama(special: list[str]) -> Any:
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    return core, lambda size: trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special, *BYTES], show_progress=False
    )


def _unigram() -> Any:
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    return core, lambda size: trainers.UnigramTrainer(
        vocab_size=size, special_tokens=ROBERTA, unk_token="<unk>", show_progress=False
    )


TRAINING = {
    "wordpiece": _wordpiece,
    "gpt2": lambda: _byte_bpe(["<|endoftext|>"]),
    "roberta": lambda: _byte_bpe(ROBERTA),
    "llama": lambda: _llama(["<unk>", "<s>", "</s>"]),
    "gemma": lambda: _llama(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]),
    "unigram": _unigram,
}


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerBase:
    """A tokenizer of the class that models of this kind use."""
    return CLASSES[kind]()


def _bert() -> BertTokenizer:
    return BertTokenizer(vocab=trained("wordpiece", 900)["vocab"], model_max_length=64)


def _mpnet() -> MPNetTokenizer:
    renamed = dict(zip(BERT, ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"], strict=True))
    return MPNetTokenizer(vocab={renamed.get(name, name): i for name, i in trained("wordpiece", 900)["vocab"].items()})


def _roberta() -> RobertaTokenizer:
    model = trained("roberta", 900)
    return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def _gpt2() -> GPT2Tokenizer:
    model = trained("gpt2", 900)
    return GPT2Tokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def _llama_tokenizer() -> LlamaTokenizer:
    model = trained("llama", 900)
    merges = [tuple(merge) for merge in model["merges"]]
    return LlamaTokenizer(vocab=model["vocab"], merges=merges, add_bos_token=True)


def _xlm_roberta() -> XLMRobertaTokenizer:
    pieces = [tuple(entry) for entry in trained("unigram", 700)["vocab"]]
    mask = next(index for index, (name, _) in enumerate(pieces) if name == "<mask>")
    return XLMRobertaTokenizer(vocab=[*pieces[:mask], *pieces[mask + 1 :], pieces[mask]])


def _albert() -> AlbertTokenizer:
    return AlbertTokenizer(vocab=_renamed(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]))


def _deberta() -> DebertaV2Tokenizer:
    return DebertaV2Tokenizer(vocab=_renamed(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]))


def _renamed(special: list[str]) -> list[tuple[str, float]]:
    """A trained unigram model with special tokens of other names."""
    pieces = [(name, score) for name, score in trained("unigram", 700)["vocab"] if name not in ROBERTA]
    return [*((name, 0.0) for name in special), *pieces]


def _qwen2() -> Qwen2Tokenizer:
    model = trained("gpt2", 900)
    return Qwen2Tokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def _gpt_neox() -> GPTNeoXTokenizer:
    model = trained("gpt2", 900)
    return GPTNeoXTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def _gemma() -> GemmaTokenizer:
    model = trained("gemma", 900)
    return GemmaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


CLASSES = {
    "albert": _albert,
    "bert": _bert,
    "deberta-v2": _deberta,
    "gemma": _gemma,
    "gpt_neox": _gpt_neox,
    "qwen2": _qwen2,
    "mpnet": _mpnet,
    "roberta": _roberta,
    "gpt2": _gpt2,
    "llama": _llama_tokenizer,
    "xlm-roberta": _xlm_roberta,
}


def random_bpe(seed: int, **settings: Any) -> PreTrainedTokenizerFast:
    """Merges over four letters in any order, several of which may give the same piece, and some letters no piece."""
    draw = random.Random(seed)
    pieces = draw.sample(LETTERS, draw.randint(2, 4))
    merges: list[tuple[str, str]] = []
    for _ in range(draw.randint(1, 25)):
        pair = (draw.choice(pieces), draw.choice(pieces))
        if pair not in merges and len("".join(pair)) < 8:
            merges.append(pair)
            if "".join(pair) not in pieces:
                pieces.append("".join(pair))
    draw.shuffle(merges)
    vocabulary = numbered(["<unk>", *draw.sample(pieces, len(pieces))])
    return wrap(models.BPE(vocabulary, merges, unk_token="<unk>", **settings))


def random_unigram(seed: int) -> PreTrainedTokenizerFast:
    """Pieces over four letters with scores that are often equal; some letters are no piece by themselves."""
    draw = random.Random(seed)
    scores = [-1.0, -2.0, -3.0, -4.0, -25.0, -60.0]
    pieces = {"".join(draw.choices(LETTERS, k=draw.randint(1, 4))) for _ in range(draw.randint(3, 25))}
    vocabulary = [("<unk>", 0.0), *((piece, draw.choice(scores)) for piece in sorted(pieces))]
    return wrap(models.Unigram(vocabulary, unk_id=0))


def random_wordpiece(seed: int) -> PreTrainedTokenizerFast:
    """Pieces over four letters; each piece's letters are pieces at their places, as trainers make them."""
    draw = random.Random(seed)
    pieces: set[str] = set()
    for _ in range(draw.randint(2, 20)):
        text = "".join(draw.choices(LETTERS, k=draw.randint(1, 5)))
        inner = draw.random() < 0.5
        pieces |= {f"##{text}" if inner else text, f"##{text[0]}" if inner else text[0]}
        pieces |= {f"##{character}" for character in text[1:]}
    return wrap(models.WordPiece(numbered(["<unk>", *sorted(pieces)]), unk_token="<unk>"))


def random_words(seed: int) -> PreTrainedTokenizerFast:
    """Whole words only."""
    draw = random.Random(seed)
    words = {"".join(draw.choices(LETTERS, k=draw.randint(1, 3))) for _ in range(30)}
    return wrap(models.WordLevel(numbered(["<unk>", *sorted(words)]), unk_token="<unk>"))


def wrap(model: Any, **names: Any) -> PreTrainedTokenizerFast:
    """A tokenizer around a model, split at blanks, with a special token in front."""
    core = Tokenizer(model)
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.Fuse()
    core.add_special_tokens(["<end>"])
    end = core.token_to_id("<end>")
    core.post_processor = processors.TemplateProcessing(single="<end> $A", special_tokens=[("<end>", end)])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<end>", **names)


def numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(pieces)}
