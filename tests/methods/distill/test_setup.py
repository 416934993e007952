"""Two models must mean the same by a token; a student that nobody gave heads has those of the paper."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, LlamaConfig, PreTrainedTokenizerFast

from slimformer.errors import ConfigError
from slimformer.methods.corpus import check_same_tokens
from slimformer.methods.distill import DistillConfig
from slimformer.methods.distill.setup import student_shape
from slimformer.methods.distill.student import student_config


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


LARGE = BertConfig(hidden_size=1024, num_attention_heads=16)
GROUPED = LlamaConfig(hidden_size=2048, num_attention_heads=32, num_key_value_heads=8)


@pytest.mark.parametrize(
    ("teacher", "settings", "heads"),
    [
        (LARGE, {"hidden": 384}, 12),
        (LARGE, {"hidden": 768}, 12),
        (LARGE, {"hidden": 384, "heads": 8}, 8),
        (LARGE, {"layers": 6}, 16),  # the teacher's width and heads
        (LARGE, {"hidden": 512}, 16),  # 12 do not divide it
        (LARGE, {"hidden": 96}, 16),  # heads of 8 would say little
        (LARGE, {"hidden": 384, "start": "spaced"}, 16),
        (LARGE, {"hidden": 384, "objective": "minilm-v1"}, 16),
        (LARGE, {"hidden": 384, "terms": "relations, attention-maps[all]:0.1"}, 16),
        (LARGE, {"hidden": 384, "objective": "hidden-states"}, 12),
        (GROUPED, {"hidden": 768}, 12),
        (LlamaConfig(hidden_size=896, num_attention_heads=14, num_key_value_heads=2), {"hidden": 672}, 14),
    ],
)
def test_a_student_of_another_width_has_twelve_heads_where_they_fit(teacher, settings, heads):
    student = student_config(teacher, student_shape(DistillConfig(**settings), teacher))
    assert student.num_attention_heads == heads
    if teacher is GROUPED:
        assert student.num_key_value_heads == 3
