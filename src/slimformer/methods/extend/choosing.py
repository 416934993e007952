"""Which new pieces a domain needs most: those that save most tokens of its texts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from slimformer.corpus.examples import Encoder
from slimformer.errors import ConfigError, DataError
from slimformer.methods.extend.kinds import open_splitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transformers import PreTrainedTokenizerBase

    from slimformer.methods.extend.splitting import Splitting, Tokens

    #: A piece that might be added: its text, and what it is joined from where that matters.
    Candidate = tuple[str, Tokens]

#: Different words that are looked at, the most frequent first; it bounds time and memory.
MOST_WORDS = 2**18
#: Times that a piece must be of use.
LEAST = 2


@dataclass(frozen=True)
class NewPiece:
    """A piece that a vocabulary gets.

    Args:
        id: Its number.
        text: How the vocabulary spells it, marks of a start or a continuation included.
        run: The pieces it is joined from; of BPE the merge that reaches it, whose sides may be new themselves.
        parts: Numbers of the old pieces that it stands for, in their order.
        saves: Tokens of the corpus that it saves beyond those chosen before it.
    """

    id: int
    text: str
    run: tuple[str, ...]
    parts: tuple[int, ...]
    saves: int


def choose_new_pieces(
    tokenizer: PreTrainedTokenizerBase, documents: Iterable[str], count: int, *, least: int = LEAST
) -> list[NewPiece]:
    """Choose pieces for what the texts of a domain say often and the tokenizer splits into several tokens.

    A candidate is any row of tokens inside a word: a whole word, or a piece that several words share. The one that
    saves most tokens where it stands comes first (of several that save as many, the first by its text); then all words
    are split with it, and so on. A candidate that would make words longer elsewhere than it makes them shorter, or
    unknown, is passed over. The same texts, in any order, give the same pieces.

    Args:
        tokenizer: A fast tokenizer with pieces of words: WordPiece, BPE or Unigram.
        documents: Texts of the domain, such as `open_corpus(...).documents()`; they are read once.
        count: How many pieces to choose; there are fewer where the texts do not need as many.
        least: How often a piece must occur.
    """
    if count < 1 or least < 1:
        raise ConfigError(f"`count` is {count} and `least` is {least}; give 1 or more for both")
    splitting = open_splitting(tokenizer)
    words = count_words(tokenizer, documents)
    if not words:
        raise DataError("the corpus gives no token, so that no piece is needed; give text of the domain")
    chooser = _Chooser(splitting, _stretches(splitting, words))
    first = 1 + max(tokenizer.get_vocab().values())
    return [
        NewPiece(first + at, text, run, tuple(splitting.vocabulary.ids[part] for part in splitting.new[text]), saves)
        for at, (text, run, saves) in enumerate(chooser.choose(count, least))
    ]


def count_words(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> Counter[tuple[int, ...]]:
    """How often each word occurs in texts, by the numbers of its tokens.

    Args:
        tokenizer: A fast tokenizer; words are what it splits by itself.
        documents: The texts.
    """
    return Counter(map(tuple, Encoder(tokenizer).words(documents)))


def _stretches(splitting: Splitting, words: Counter[tuple[int, ...]]) -> dict[Tokens, int]:
    """How often each stretch of several tokens occurs; the most frequent alone, where there are very many."""
    names = splitting.vocabulary.pieces
    stretches: Counter[Tokens] = Counter()
    for word, times in words.items():
        # An added token may have no name in the model; nothing is joined from it.
        tokens = tuple(names.get(token_id, "") for token_id in word)
        for stretch in splitting.stretches(tokens):
            if len(stretch) > 1:
                stretches[stretch] += times
    return dict(sorted(stretches.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORDS])


class _Chooser:
    """Words, how they are split now, and what each candidate would save.

    Args:
        splitting: How words are split.
        words: Tokens of a word → how often it occurs.
    """

    def __init__(self, splitting: Splitting, words: dict[Tokens, int]) -> None:
        self.splitting = splitting
        self.words = list(words)
        self.times = list(words.values())
        splitting.prepare(self.words)
        self.saves: Counter[Candidate] = Counter()
        self.holders: defaultdict[Candidate, set[int]] = defaultdict(set)
        for index in range(len(self.words)):
            self._account(index, 1)
        self.queue = [(-saves, candidate) for candidate, saves in self.saves.items()]
        heapify(self.queue)

    def choose(self, count: int, least: int) -> Iterator[tuple[str, Tokens, int]]:
        """Pieces one after the other: text, what it is joined from, and tokens it saves."""
        left = count
        while left and self.queue:
            saves, candidate = heappop(self.queue)
            text, run = candidate
            # What a candidate saves changes with every choice; each change has put it into the queue again.
            if -saves != self.saves[candidate] or text in self.splitting.new or text in self.splitting.old:
                continue
            if sum(self.times[index] for index in self.holders[candidate]) < least:
                continue
            saved = self._apply(text, run, candidate)
            if saved is not None:
                left -= 1
                yield text, run or self.splitting.new[text], saved

    def _apply(self, text: str, run: Tokens, candidate: Candidate) -> int | None:
        """Split all words with a new piece and return how many tokens it saves; None where it does harm."""
        splitting = self.splitting
        parts = splitting.parts(text, run)
        if parts is None:
            return None
        splitting.add(text, parts)
        touched = splitting.touched(text)
        changed = {}
        saved = 0
        for index in self.holders[candidate] if touched is None else touched:
            word, tokens = self.words[index], splitting.split(self.words[index], text, run)
            if tokens is None:
                splitting.remove(text)
                return None
            if tokens != word:
                changed[index] = tokens
                saved += self.times[index] * (len(word) - len(tokens))
        if saved <= 0:
            splitting.remove(text)
            return None
        for index, tokens in changed.items():
            self._replace(index, tokens)
        return saved

    def _replace(self, index: int, tokens: Tokens) -> None:
        affected = self._account(index, -1)
        self.words[index] = tokens
        affected |= self._account(index, 1)
        for candidate in affected:
            if self.saves[candidate] > 0:
                heappush(self.queue, (-self.saves[candidate], candidate))

    def _account(self, index: int, sign: int) -> set[Candidate]:
        """Add or take away what candidates save in one word, and return these candidates."""
        splitting, word = self.splitting, self.words[index]
        affected = set()
        for start in range(len(word) - 1):
            for end in range(start + 2, min(len(word), start + splitting.longest) + 1):
                run = word[start:end]
                candidate = (splitting.join(run), run if splitting.by_parts else ())
                affected.add(candidate)
                self.saves[candidate] += sign * self.times[index] * (len(run) - 1)
        for candidate in affected:
            if sign > 0:
                self.holders[candidate].add(index)
            else:
                self.holders[candidate].discard(index)
        return affected
