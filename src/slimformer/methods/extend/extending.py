"""A tokenizer and a model with more pieces."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from slimformer.anatomy import Anatomy
from slimformer.corpus.examples import Encoder
from slimformer.errors import AnatomyError, ConfigError
from slimformer.methods.extend.choosing import LEAST, choose_new_pieces
from slimformer.methods.extend.kinds import open_splitting
from slimformer.methods.trim.model import resize_vocabulary
from slimformer.methods.trim.tokenizer import reload_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

    from slimformer.methods.extend.choosing import NewPiece

T = TypeVar("T", bound="PreTrainedTokenizerBase")


def extend_vocabulary(
    model: nn.Module, tokenizer: T, documents: Iterable[str], count: int, *, least: int = LEAST
) -> tuple[T, list[NewPiece]]:
    """Give a model, in place, and its tokenizer the new pieces that a domain needs most.

    Args:
        model: A text model without views on it.
        tokenizer: Its fast tokenizer; it is left as it is.
        documents: Texts of the domain, such as `open_corpus(...).documents()`.
        count: How many pieces to add; there are fewer where the texts do not need as many.
        least: How often a piece must occur.

    Returns:
        The tokenizer with new pieces, and these.
    """
    rows, tokens = _rows(Anatomy.of(model)), 1 + max(tokenizer.get_vocab().values())
    if tokens > rows:
        raise ConfigError(
            f"the tokenizer has {tokens} pieces, and the embedding has {rows} rows; give the model's own tokenizer"
        )
    pieces = choose_new_pieces(tokenizer, documents, count, least=least)
    extended = extend_tokenizer(tokenizer, pieces)
    extend_model(model, pieces)
    return extended, pieces


def extend_tokenizer(tokenizer: T, pieces: Sequence[NewPiece]) -> T:
    """A tokenizer of the same class that splits words into new pieces too; old pieces keep their ids.

    The pieces are part of its model, with the merges or scores that reach them; they are no added tokens, which would
    cut words apart wherever their letters stand. Text in which no new piece ends up is split as before.

    Args:
        tokenizer: The fast tokenizer that the pieces were chosen for; it is left as it is.
        pieces: Of `choose_new_pieces`, or the first of them.
    """
    splitting = open_splitting(tokenizer)
    vocabulary = splitting.vocabulary
    first = 1 + max(tokenizer.get_vocab().values())
    for at, piece in enumerate(pieces):
        if piece.id != first + at or piece.text in vocabulary.ids:
            raise ConfigError(
                f"piece `{piece.text}` has id {piece.id}, and the next new one of this tokenizer is {first + at}; give "
                "pieces from the first on, and the tokenizer that they were chosen for"
            )
    if not pieces:
        return tokenizer
    return reload_tokenizer(tokenizer, {**vocabulary.state, "model": {**vocabulary.model, **splitting.extend(pieces)}})


def extend_model(model: nn.Module, pieces: Sequence[NewPiece]) -> nn.Module:
    """Give a model rows for new pieces, in place: in the word embedding, and in heads and biases with a row per piece.

    A new row is the mean of the rows of the old pieces that it stands for, in the input and in the output alike. Ties
    stay tied, old rows stay as they are, and the configs get the new size. Rows that an embedding has beyond its
    tokenizer are used first.

    Args:
        model: A text model without views on it.
        pieces: Of `choose_new_pieces`.
    """
    anatomy = Anatomy.of(model)
    rows = _rows(anatomy)
    if not pieces:
        return model
    first = min(piece.id for piece in pieces)
    if first > rows:
        raise ConfigError(
            f"the first new piece has id {first}, and the embedding has {rows} rows; give the pieces that were chosen "
            "for the model's own tokenizer"
        )
    size = max(rows, *(piece.id + 1 for piece in pieces))
    resize_vocabulary(anatomy.model, size, lambda tensor, dim: _with_means(tensor, dim, size, pieces))
    return model


def _rows(anatomy: Anatomy) -> int:
    embedding = anatomy.word_embedding
    if embedding is None:
        raise AnatomyError(
            f"a {type(anatomy.model).__name__} of family `{anatomy.family.name}` has no word embedding to extend; "
            "give a text model"
        )
    return embedding.shape[0]


def _with_means(tensor: Tensor, dim: int, size: int, pieces: Sequence[NewPiece]) -> Tensor:
    """A tensor with `size` rows along a dimension, of which those of new pieces are means."""
    old = tensor.movedim(dim, 0)
    new = old.new_zeros((size, *old.shape[1:]))
    new[: len(old)] = old
    for piece in pieces:
        # 16 bits would lose what little the rows of a mean differ by.
        new[piece.id] = old[list(piece.parts)].to(torch.float64).mean(0).to(old.dtype)
    return new.movedim(0, dim)


@dataclass(frozen=True)
class ExtensionReport:
    """What new pieces do to texts.

    Args:
        words: Words of the texts, as blanks part them.
        tokens_before: Tokens with the old tokenizer.
        tokens_after: Tokens with new pieces.
        new_tokens: Tokens of these that are new pieces.
        texts: How many texts there are.
        texts_same: How many of them are split as before.
    """

    words: int
    tokens_before: int
    tokens_after: int
    new_tokens: int
    texts: int
    texts_same: int

    @property
    def per_word_before(self) -> float:
        """Tokens for each word with the old tokenizer."""
        return self.tokens_before / max(self.words, 1)

    @property
    def per_word_after(self) -> float:
        """Tokens for each word with new pieces."""
        return self.tokens_after / max(self.words, 1)

    def summary(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "per_word_before": self.per_word_before, "per_word_after": self.per_word_after}


def compare_extended(
    tokenizer: PreTrainedTokenizerBase, extended: PreTrainedTokenizerBase, documents: Iterable[str]
) -> ExtensionReport:
    """Split texts with both tokenizers and count tokens.

    Args:
        tokenizer: The tokenizer before.
        extended: Of `extend_tokenizer`.
        documents: The texts; other ones than those the pieces were chosen on tell more.
    """
    first = 1 + max(tokenizer.get_vocab().values())
    words = [0]

    def counted() -> Iterator[str]:
        for document in documents:
            words[0] += len(document.split())
            yield document

    before = after = new = texts = same_texts = 0
    same = True
    one, other = tee(counted())
    for (old_ids, ends), (new_ids, _) in zip(
        Encoder(tokenizer).encode(one), Encoder(extended).encode(other), strict=True
    ):
        before += len(old_ids)
        after += len(new_ids)
        new += sum(token_id >= first for token_id in new_ids)
        same = same and old_ids == new_ids
        texts += ends
        same_texts += ends and same
        same = same or ends
    return ExtensionReport(words[0], before, after, new, texts, same_texts)
