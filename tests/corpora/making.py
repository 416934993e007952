"""Tokenizers of every kind, tiny and made in a moment, and documents whose words occur once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from slimformer.corpus import Corpus, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: Numbers of the first words of `words()`.
PAD, UNKNOWN, OPEN, PART = range(4)


def numbered(*tokens: str) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def of_bytes(*special: str) -> dict[str, int]:
    return numbered(*special, *sorted(pre_tokenizers.ByteLevel.alphabet()))


def bert() -> BertTokenizer:
    pieces = (*LETTERS, *(f"##{letter}" for letter in LETTERS))
    return BertTokenizer(vocab=numbered("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces))


def mpnet() -> MPNetTokenizer:
    pieces = (*LETTERS, *(f"##{letter}" for letter in LETTERS))
    return MPNetTokenizer(vocab=numbered("<s>", "<pad>", "</s>", "[UNK]", "<mask>", *pieces))


def roberta() -> RobertaTokenizer:
    return RobertaTokenizer(vocab=of_bytes("<s>", "<pad>", "</s>", "<unk>", "<mask>"), merges=[])


def xlm_roberta() -> XLMRobertaTokenizer:
    special = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    return XLMRobertaTokenizer(vocab=[*special, ("▁", -2.0), *((letter, -3.0) for letter in LETTERS), ("<mask>", 0.0)])


def llama() -> LlamaTokenizer:
    return LlamaTokenizer(vocab=numbered("<unk>", "<s>", "</s>", "▁", *LETTERS), merges=[], add_bos_token=True)


def gpt2() -> GPT2Tokenizer:
    """Every byte is a token, so that text can be had back from the tokens."""
    return GPT2Tokenizer(vocab=of_bytes("<|endoftext|>"), merges=[])


KINDS = {
    "bert": bert,
    "mpnet": mpnet,
    "roberta": roberta,
    "xlm-roberta": xlm_roberta,
    "llama": llama,
    "gpt2": gpt2,
}


def words(count: int = 4000) -> PreTrainedTokenizerFast:
    """A word is a token: `w7` has number 4 + 7."""
    built = Tokenizer(
        models.WordLevel(
            numbered("[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(count))), "[UNK]"
        )
    )
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=built, **names)


def unique_documents(lengths: Sequence[int]) -> list[str]:
    """Documents of so many words each; no word occurs twice, and a document's follow one another in number."""
    documents, number = [], 0
    for length in lengths:
        documents.append(" ".join(f"w{each}" for each in range(number, number + length)))
        number += length
    return documents


def ids(stream, count: int, start: int = 0) -> list[list[int]]:
    return [stream[number]["input_ids"].tolist() for number in range(start, start + count)]


def text_of(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class CountingSource(Source):
    """A source that notes which of its segments are read."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.reads: list[int] = []

    def sizes(self):
        return self.source.sizes()

    def read(self, segment: int, on_fault) -> Iterator[str]:
        self.reads.append(segment)
        return self.source.read(segment, on_fault)

    def identity(self) -> Iterator[bytes]:
        return self.source.identity()


def counted(corpus: Corpus) -> tuple[Corpus, CountingSource]:
    (source,) = corpus.sources
    counting = CountingSource(source)
    return Corpus([counting]), counting
