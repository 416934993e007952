"""Two models must mean the same by a token."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from slimformer.errors import ConfigError
from slimformer.methods.distill.setup import check_same_tokens


def tokenizer(*words, **special):
    model = WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), **{"unk_token": "[UNK]", **special})


def test_equal_vocabularies_pass():
    check_same_tokens(tokenizer("[UNK]", "a", "b"), tokenizer("[UNK]", "a", "b"))


def test_equal_sizes_are_not_enough():
    with pytest.raises(ConfigError, match="token 1 is `a` to the teacher and `b` to the student"):
        check_same_tokens(tokenizer("[UNK]", "a", "b"), tokenizer("[UNK]", "b", "a"))


def test_a_token_more_is_refused():
    with pytest.raises(ConfigError, match="token 3 is nothing to the teacher and `c` to the student"):
        check_same_tokens(tokenizer("[UNK]", "a", "b"), tokenizer("[UNK]", "a", "b", "c"))


def test_special_tokens_count():
    with pytest.raises(ConfigError, match="`sep_token` is `a` to the teacher and `b` to the student"):
        check_same_tokens(tokenizer("[UNK]", "a", "b", sep_token="a"), tokenizer("[UNK]", "a", "b", sep_token="b"))
