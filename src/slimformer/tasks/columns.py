"""Which columns hold the text and the label: as told, as the preset says, or guessed when there is no doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.tasks.sources import SplitRows

PAIRS = (
    ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b"), ("text1", "text2"),
    ("text_a", "text_b"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("question", "passage"), ("question", "context"), ("query", "document"), ("query", "passage"),
    ("anchor", "positive"),
)  # fmt: skip
TEXTS = ("text", "sentence", "content", "document", "review", "tweet", "utterance", "question", "query", "body")
LABELS = ("label", "labels", "class", "category", "target", "gold_label", "sentiment", "intent", "emotion", "topic")
SCORES = ("score", "label", "target", "rating", "value", "similarity", "relatedness_score")
TOKENS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "pos_tags", "labels", "upos")
ANSWERS = ("answer", "label", "answerkey", "correct", "gold")
IDS = ("id", "idx", "index", "guid", "uid", "unnamed: 0", "")


@dataclass(frozen=True)
class Columns:
    """The columns a task reads.

    Args:
        text: One column, or two for a pair.
        label: The column of the label, score, tags or answer; None when the kind has none.
        choices: The columns of the choices, when each choice has its own.
        join_text: Whether the text columns make one text rather than a pair.
    """

    text: tuple[str, ...]
    label: str | None = None
    choices: tuple[str, ...] = ()
    join_text: bool = False


def given_columns(columns: str | Sequence[str] | None, there: Sequence[str]) -> tuple[str, ...] | None:
    """What a user gave: one name, several joined with commas, or a sequence."""
    if columns is None:
        return None
    if isinstance(columns, str):
        return (columns,) if columns in there else tuple(name.strip() for name in columns.split(","))
    return tuple(columns)


def check_columns(names: Sequence[str], found: SplitRows, advice: str) -> None:
    """Refuse columns that a file does not have."""
    for name in names:
        if name not in found.columns:
            raise DataError(f"`{found.file}` has no column `{name}`; it has {listed(found.columns)}; {advice}")


def guess_text(found: SplitRows, taken: str | None, *, pairs: bool = True) -> tuple[str, ...]:
    """The text column, or the pair of them, if there is only one way to read the names."""
    ways = ways_to_read([name for name in found.columns if name != taken], pairs=pairs)
    if not ways:
        ways = [(name,) for name in found.columns if name != taken and name.lower() not in IDS]
        if taken is None and len(ways) > 1:
            ways = []
    if len(ways) != 1:
        raise DataError(
            f"`{found.file}` does not tell which column holds the text: it has {listed(found.columns)}; "
            "name it with text_column, or two joined with a comma for pairs"
        )
    return ways[0]


def ways_to_read(names: Sequence[str], *, pairs: bool = True) -> list[tuple[str, ...]]:
    """The text columns and pairs of them that some names are known as."""
    there = {name.lower(): name for name in names}
    candidates = [pair for pair in PAIRS if pairs and set(pair) <= set(there)]
    in_pairs = {name for pair in candidates for name in pair}
    singles = [(name,) for name in TEXTS if name in there and name not in in_pairs]
    return [tuple(there[name] for name in way) for way in [*candidates, *singles]]


def guess_one(found: SplitRows, names: Sequence[str], what: str, option: str = "label_column") -> str:
    """The only column that bears one of the names, or else the only one that is neither text nor a number of rows."""
    matching = [name for name in found.columns if name.lower() in names]
    if not matching:
        texts = {*TEXTS, *IDS, *(name for pair in PAIRS for name in pair)}
        rest = [name for name in found.columns if name.lower() not in texts]
        matching = rest if len(rest) < len(found.columns) else []
    if len(matching) != 1:
        raise DataError(
            f"`{found.file}` does not tell which column holds the {what}: it has {listed(found.columns)}; "
            f"name it with {option}"
        )
    return matching[0]


def listed(names: Sequence[str]) -> str:
    """Column names as messages show them."""
    return ("the columns " if len(names) != 1 else "the column ") + ", ".join(f"`{name}`" for name in names)
