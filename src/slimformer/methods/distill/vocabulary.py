"""A student's vocabulary: that of its teacher, or what of it the corpus uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.corpus import ImageCorpus
from slimformer.methods.trim import domain_pieces, trim_model, trim_tokenizer
from slimformer.methods.trim.config import COVERAGE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.corpus import Corpus
    from slimformer.methods.distill.config import DistillConfig


@dataclass(frozen=True)
class Trimming:
    """The word pieces that teacher and student have kept.

    Args:
        ids: Their numbers before.
        before: How many there were.
        coverage: Share of the corpus's tokens that they make up.
    """

    ids: list[int]
    before: int
    coverage: float

    def __str__(self) -> str:
        return (
            f"{len(self.ids):,} of {self.before:,} word pieces kept, {100 * self.coverage:.2f} % of the corpus's tokens"
        )


def trim_teacher(
    config: DistillConfig, teacher: PreTrainedModel, tokenizer: Any, corpus: Corpus | ImageCorpus
) -> tuple[Trimming, Any]:
    """Drop the word pieces that a corpus does not use, of the teacher in place.

    Teacher and student go on seeing the same tokens, so that whatever compares them token by token still does.

    Args:
        config: The settings.
        teacher: The teacher.
        tokenizer: Its tokenizer; it is left as it is.
        corpus: The texts.

    Returns:
        What stayed, and the tokenizer of it.
    """
    assert not isinstance(corpus, ImageCorpus)
    before = int(teacher.config.vocab_size)
    share = COVERAGE if config.keep is None else None
    ids, coverage = domain_pieces(teacher, tokenizer, corpus.documents(), keep=config.keep, coverage=share)
    trimmed = trim_tokenizer(tokenizer, ids)
    trim_model(teacher, ids)
    return Trimming(ids, before, coverage), trimmed
