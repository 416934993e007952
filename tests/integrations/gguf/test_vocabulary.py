"""Tokenizers as llama.cpp reads them, and those it would read wrongly."""

from __future__ import annotations

import json

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from slimformer.errors import ArtifactError
from slimformer.integrations.gguf.vocabulary import vocabulary_of
from tests import corpus
from tests.integrations.gguf import making


@pytest.mark.parametrize("rules", making.RULES)
def test_rules_of_splitting_have_the_name_llama_knows(rules):
    processor = making.byte_level(rules)
    vocabulary = vocabulary_of(processor, len(processor))
    assert (vocabulary.model, vocabulary.pre, vocabulary.scores) == ("gpt2", rules, None)
    model = json.loads(processor.backend_tokenizer.to_str())["model"]
    assert vocabulary.merges == [" ".join(pair) for pair in model["merges"]]
    assert vocabulary.tokens == processor.convert_ids_to_tokens(range(len(processor)))


def test_types_of_pieces():
    processor = making.sentence_piece()
    processor.add_tokens(["slim"])
    vocabulary = vocabulary_of(processor, len(processor) + 2)
    types = dict(zip(vocabulary.tokens, vocabulary.types, strict=True))
    assert [types[piece] for piece in ("<unk>", "<s>", "<0x0A>", "slim", vocabulary.tokens[-1])] == [2, 3, 6, 4, 5]
    assert types["\u2581"] == 1


def test_scores_are_the_order_of_merges():
    processor = making.sentence_piece()
    merges = json.loads(processor.backend_tokenizer.to_str())["model"]["merges"]
    vocabulary = vocabulary_of(processor, len(processor))
    scores = dict(zip(vocabulary.tokens, vocabulary.scores, strict=True))
    ranked = list(dict.fromkeys("".join(pair) for pair in merges))
    assert sorted(ranked, key=lambda piece: -scores[piece]) == ranked
    assert scores["<s>"] == 0


def test_pieces_that_begin_a_word():
    processor = making.word_piece()
    vocabulary = vocabulary_of(processor, len(processor), segments=2)
    pieces = processor.convert_ids_to_tokens(range(len(processor)))
    stored = dict(zip(pieces, vocabulary.tokens, strict=True))
    inner = next(piece for piece in pieces if piece.startswith("##"))
    assert (stored["[CLS]"], stored["the"], stored[inner]) == ("[CLS]", "\u2581the", inner[2:])
    assert vocabulary.settings == {
        "normalizer.lowercase": True,
        "normalizer.strip_accents": True,
        "add_bos_token": True,
        "add_eos_token": True,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "unknown_token_id": 1,
        "padding_token_id": 0,
        "seperator_token_id": 3,
        "cls_token_id": 2,
        "mask_token_id": 4,
        "token_type_count": 2,
    }


def test_a_chat_template_goes_along():
    processor = making.byte_level()
    processor.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert vocabulary_of(processor, len(processor)).chat == processor.chat_template


def changed(processor: PreTrainedTokenizerFast, **parts) -> PreTrainedTokenizerFast:
    """The tokenizer with other parts."""
    built = Tokenizer.from_str(processor.backend_tokenizer.to_str())
    for name, part in parts.items():
        setattr(built, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=built)


def cleaned(processor: PreTrainedTokenizerFast, step: normalizers.Normalizer) -> PreTrainedTokenizerFast:
    """The tokenizer with a step before the others."""
    return changed(processor, normalizer=normalizers.Sequence([step, processor.backend_tokenizer.normalizer]))


def test_blanks_that_are_another_character_are_not_split_at():
    """As Gemma has it, whose rule finds none."""
    processor = changed(making.sentence_piece(), pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"))
    assert vocabulary_of(processor, len(processor)).settings["add_space_prefix"]


REFUSED = {
    "whole words": (corpus.tokenizer, "the tokenizer is a `WordLevel`, and llama.cpp has BPE"),
    "a blank before bytes": (
        lambda: changed(making.byte_level(), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        r"the tokenizer has the pre_tokenizer `.*add_prefix_space.*, for which llama.cpp has no rules",
    ),
    "another pattern": (
        lambda: changed(
            making.byte_level(),
            pre_tokenizer=pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
        ),
        "the tokenizer has the pre_tokenizer",
    ),
    "small letters before bytes": (
        lambda: changed(making.byte_level(), normalizer=normalizers.Lowercase()),
        "the tokenizer has the pre_tokenizer|the tokenizer has the normalizer `.*Lowercase",
    ),
    "small letters before merges": (
        lambda: changed(making.sentence_piece(), normalizer=normalizers.Lowercase()),
        r"the tokenizer has the normalizer `.*Lowercase.*, for which llama.cpp has no rules",
    ),
    "blanks that stay blanks": (
        lambda: changed(making.sentence_piece(), normalizer=normalizers.Prepend("\u2581")),
        r"the tokenizer has the normalizer `.*Prepend",
    ),
    "splits before merges": (
        lambda: changed(making.sentence_piece(), pre_tokenizer=pre_tokenizers.Split(Regex(r"\d"), "isolated")),
        r"the tokenizer has the pre_tokenizer `.*Split",
    ),
    "splits before likely pieces": (
        lambda: changed(
            making.unigram(),
            pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Metaspace()]),
        ),
        r"the tokenizer has the pre_tokenizer `.*Split",
    ),
    "words before merges": (
        lambda: changed(
            making.sentence_piece(),
            normalizer=normalizers.Prepend("\u2581"),
            pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        ),
        r"the tokenizer has the pre_tokenizer `.*WhitespaceSplit",
    ),
    "a table before merges": (
        lambda: cleaned(making.sentence_piece(), normalizers.Precompiled(making._blanks_for_lines())),
        r"the tokenizer has the normalizer `.*Precompiled",
    ),
    "one blank before merges": (
        lambda: cleaned(making.sentence_piece(), normalizers.Replace(Regex(" {2,}"), " ")),
        r"the tokenizer has the normalizer `.* \{2,\}",
    ),
    "words by another rule": (
        lambda: changed(making.word_piece(), pre_tokenizer=pre_tokenizers.Whitespace()),
        r"the tokenizer has the pre_tokenizer `.*Whitespace",
    ),
    "two tokens before a text": (
        lambda: changed(
            making.word_piece(),
            post_processor=processors.TemplateProcessing(single="[CLS] [CLS] $A", special_tokens=[("[CLS]", 2)]),
        ),
        "llama.cpp puts at most one token before a text and one behind it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tokenizers_that_would_make_other_tokens(case):
    make, message = REFUSED[case]
    processor = make()
    with pytest.raises(ArtifactError, match=message):
        vocabulary_of(processor, len(processor))


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows():
    processor = making.word_piece()
    with pytest.raises(ArtifactError, match=f"makes tokens up to {len(processor) - 1}, and the model has 20 rows"):
        vocabulary_of(processor, 20)
