"""How each kind of tokenizer splits words, and what a new piece changes in that.

Each class says which stretches of a word a new piece may be joined from, splits words anew once it is there, and writes
it into tokenizer.json so that the tokenizer itself splits that way. Text in which no new piece ends up is split as
before: the reason stands at each class.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError
from slimformer.methods.extend.splitting import Splitting
from slimformer.methods.trim.vocabulary import BPE, Unigram, WordPiece, open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slimformer.methods.extend.choosing import NewPiece
    from slimformer.methods.extend.splitting import Tokens
    from slimformer.methods.trim.vocabulary import Vocabulary

#: What stands for a blank at the start of a word where a tokenizer does not cut texts into words by itself.
BLANK = "▁"
#: What a new unigram piece scores above its parts, for each of them that it saves: enough to win whatever the rounding.
HAIR = 1e-6


class _ByText(Splitting):
    """Vocabularies that split a word by its text alone, so that a piece may change every word which holds its text."""

    _texts: list[str]
    _ends: list[int]
    _all: str

    def prepare(self, words: Sequence[Tokens]) -> None:
        """Lay the texts of the words one behind the other, to be searched at once."""
        self._texts = [self._text(word) for word in words]
        self._all = "\n".join(self._texts)
        self._ends = list(accumulate(len(text) + 1 for text in self._texts))

    def touched(self, piece: str) -> list[int]:
        """Words that hold the text of the piece."""
        text = self._text((piece,))
        indices = []
        at = self._all.find(text)
        while at >= 0:
            word = bisect_right(self._ends, at)
            indices.append(word)
            at = self._all.find(text, self._ends[word])
        return indices

    def split(self, word: Tokens, piece: str, run: Tokens) -> Tokens | None:
        """Split the text of the word."""
        return self._split(self._text(word))

    def parts(self, piece: str, run: Tokens) -> Tokens | None:
        """How the old vocabulary splits the piece."""
        return self._split_old(piece)

    @abstractmethod
    def _text(self, word: Tokens) -> str: ...

    @abstractmethod
    def _split(self, text: str) -> Tokens | None: ...

    @abstractmethod
    def _split_old(self, piece: str) -> Tokens | None: ...


class WordPieceSplitting(_ByText):
    """Greedy longest match.

    Where the longest match is an old piece at every step, it was the longest among the old ones too; so a word that
    ends up without a new piece is split as before.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.prefix: str = vocabulary.model["continuing_subword_prefix"]
        self.width = max(map(len, self.old), default=0)

    def join(self, run: Tokens) -> str:
        """The start or continuation that the first of them is, with the others behind it."""
        return run[0] + "".join(token.removeprefix(self.prefix) for token in run[1:])

    def add(self, piece: str, parts: Tokens) -> None:
        """Let words be split with a new piece, which may be the longest."""
        super().add(piece, parts)
        self.width = max(self.width, len(piece))

    def extend(self, pieces: Sequence[NewPiece]) -> dict[str, Any]:
        """Entries of the vocabulary."""
        return {"vocab": self._numbered(pieces)}

    def _text(self, word: Tokens) -> str:
        return "".join(token.removeprefix(self.prefix) for token in word)

    def _split(self, text: str) -> Tokens | None:
        return self._greedy(text, 0, self.new)

    def _split_old(self, piece: str) -> Tokens | None:
        inner = piece.removeprefix(self.prefix)
        return self._greedy(inner, int(inner != piece), {})

    def _greedy(self, text: str, inside: int, new: dict[str, Tokens]) -> Tokens | None:
        tokens: list[str] = []
        start = 0
        while start < len(text):
            mark = self.prefix if start or inside else ""
            for end in range(min(len(text), start + self.width), start, -1):
                token = mark + text[start:end]
                if token in self.old or token in new:
                    break
            else:
                return None
            tokens.append(token)
            start = end
        return tuple(tokens)


class BPESplitting(Splitting):
    """Merges by rank, with new merges behind all old ones.

    A new merge takes place only once no old one is left to do, and no old one knows its product. So the new tokenizer
    makes of any text what the old one makes of it, and then joins the new pairs: continued training of the merges, as
    in arXiv 2512.03989. A piece of more than two tokens needs those between, each of which counts as new.
    """

    longest = 2
    by_parts = True

    def __init__(self, vocabulary: BPE) -> None:
        super().__init__(vocabulary)
        if vocabulary.model.get("byte_fallback"):
            self.fixed |= {f"<0x{byte:02X}>" for byte in range(256)}
        self.prefix = vocabulary.prefix

    def stretches(self, word: Tokens) -> Iterator[Tokens]:
        """Parts of a word between tokens that stay as they are; where blanks are marked, from one to the next."""
        start = 0
        for at, token in enumerate(word):
            fixed = token in self.fixed or token not in self.old
            if fixed or token.startswith(BLANK):
                yield word[start:at]
                start = at + fixed
        yield word[start:]

    def join(self, run: Tokens) -> str:
        """The product of a merge."""
        return run[0] + run[1].removeprefix(self.prefix)

    def prepare(self, words: Sequence[Tokens]) -> None:
        """Nothing: the tokens of a word say what its merges are."""

    def touched(self, piece: str) -> None:
        """Words that hold the pair alone."""

    def split(self, word: Tokens, piece: str, run: Tokens) -> Tokens:
        """Join each pair, from left to right."""
        tokens: list[str] = []
        for token in word:
            if tokens and (tokens[-1], token) == run:
                tokens[-1] = piece
            else:
                tokens.append(token)
        return tuple(tokens)

    def parts(self, piece: str, run: Tokens) -> Tokens:
        """Those of both sides of the merge."""
        return tuple(part for token in run for part in self.new.get(token, (token,)))

    def extend(self, pieces: Sequence[NewPiece]) -> dict[str, Any]:
        """Entries of the vocabulary, and the merges that reach them."""
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in self.vocabulary.model["merges"]]
        return {"vocab": self._numbered(pieces), "merges": [*merges, *(list(piece.run) for piece in pieces)]}


class UnigramSplitting(_ByText):
    """The path of the highest score.

    A new piece scores a hair more than its parts together, so that it replaces them; but no less than the lowest old
    piece, since that says what an unknown character costs. Scores of old pieces stay, and so does the best path among
    them: text in which no new piece ends up is split as before.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.scores: dict[str, float] = {name: float(score) for name, score in vocabulary.model["vocab"]}
        self.lowest = min(self.scores.values())
        self.width = max(map(len, self.old), default=0)

    def stretches(self, word: Tokens) -> Iterator[Tokens]:
        """Whole words, as marked blanks part them."""
        starts = [0, *(at for at, token in enumerate(word) if at and token.startswith(BLANK)), len(word)]
        for start, end in pairwise(starts):
            yield from super().stretches(word[start:end])

    def join(self, run: Tokens) -> str:
        """Their texts in a row."""
        return "".join(run)

    def add(self, piece: str, parts: Tokens) -> None:
        """Let words be split with a new piece, which may be the longest."""
        super().add(piece, parts)
        self.scores[piece] = self._score(parts)
        self.width = max(self.width, len(piece))

    def remove(self, piece: str) -> None:
        """Take back what was added."""
        super().remove(piece)
        del self.scores[piece]

    def extend(self, pieces: Sequence[NewPiece]) -> dict[str, Any]:
        """Entries of the vocabulary with their scores."""
        entries = [list(entry) for entry in self.vocabulary.model["vocab"]]
        scores = {
            piece.text: self._score(tuple(self.vocabulary.pieces[part] for part in piece.parts)) for piece in pieces
        }
        for name, piece_id in self._numbered(pieces).items():
            if piece_id < len(self.vocabulary.model["vocab"]):
                continue
            if piece_id != len(entries):
                raise CheckpointError(
                    f"`{name}` of the tokenizer has id {piece_id}, and a unigram model would number it {len(entries)}; "
                    "add the tokens between them to the tokenizer first"
                )
            entries.append([name, scores.get(name, 0.0)])
        return {"vocab": entries}

    def _score(self, parts: Tokens) -> float:
        return max(sum(self.scores[part] for part in parts) + HAIR * (len(parts) - 1), self.lowest)

    def _text(self, word: Tokens) -> str:
        return "".join(word)

    def _split(self, text: str) -> Tokens | None:
        return self._best(text, self.new)

    def _split_old(self, piece: str) -> Tokens | None:
        return self._best(piece, {})

    def _best(self, text: str, new: dict[str, Tokens]) -> Tokens | None:
        """The best path; of several that are equal the one whose last piece begins first, as in tokenizers."""
        best: list[tuple[float, int] | None] = [(0.0, 0), *[None] * len(text)]
        for start in range(len(text)):
            reached = best[start]
            if reached is None:
                continue
            for end in range(start + 1, min(len(text), start + self.width) + 1):
                token = text[start:end]
                if token not in self.fixed and (token in self.old or token in new):
                    score = reached[0] + self.scores[token]
                    before = best[end]
                    if before is None or score > before[0]:
                        best[end] = (score, start)
        tokens: list[str] = []
        end = len(text)
        while end:
            step = best[end]
            if step is None:
                return None
            tokens.append(text[step[1] : end])
            end = step[1]
        return tuple(reversed(tokens))


def open_splitting(tokenizer: Any) -> Splitting:
    """How a fast tokenizer splits words; one that cannot be extended is refused.

    Args:
        tokenizer: A tokenizer of Transformers.
    """
    vocabulary = open_vocabulary(tokenizer)
    if isinstance(vocabulary, BPE):
        return BPESplitting(vocabulary)
    if isinstance(vocabulary, WordPiece):
        return WordPieceSplitting(vocabulary)
    if isinstance(vocabulary, Unigram):
        return UnigramSplitting(vocabulary)
    raise CheckpointError(
        f"the tokenizer's model is `{vocabulary.model['type']}`, whose words have no parts, so that there is nothing a "
        "new piece could begin with; those that can be extended: BPE, Unigram, WordPiece"
    )
