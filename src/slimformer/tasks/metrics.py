"""Metrics: pure functions of what is true and what was predicted, plain numbers out."""

from __future__ import annotations

import math
import re
import string
import unicodedata
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.models import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

#: Metrics of which less is better.
SMALLER_IS_BETTER = frozenset({"loss", "perplexity", "mean_squared_error"})


def chosen(known: Mapping[str, Callable[[], float]], names: Sequence[str]) -> dict[str, float]:
    """Compute the metrics named, as plain numbers; a name that is not known is an error."""
    for name in names:
        if name not in known:
            raise DataError(f"metric `{name}` does not fit this task; give some of: {', '.join(known)}")
    return {name: float(known[name]()) for name in names}


def classification_metrics(
    truth: NDArray[Any], predicted: NDArray[Any], classes: int, metrics: Sequence[str]
) -> dict[str, float]:
    """Measure predicted class numbers.

    `f1` is that of class 1, as GLUE has it; `f1_macro` averages over all classes of the head, so one that
    is never right counts 0; `f1_micro` of single labels equals the accuracy.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    known: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy_score(truth, predicted),
        "f1": lambda: f1_score(truth == 1, predicted == 1, zero_division=0),
        "f1_macro": lambda: f1_score(truth, predicted, labels=range(classes), average="macro", zero_division=0),
        "f1_micro": lambda: f1_score(truth, predicted, labels=range(classes), average="micro", zero_division=0),
        # Of a single class sklearn warns before it says 0.
        "matthews": lambda: (
            0.0 if len({*truth.tolist(), *predicted.tolist()}) < 2 else matthews_corrcoef(truth, predicted)
        ),
    }
    return chosen(known, metrics)


def multi_label_metrics(
    truth: NDArray[Any], scores: NDArray[Any], threshold: float, metrics: Sequence[str]
) -> dict[str, float]:
    """Measure the probabilities of labels, [texts, labels].

    `f1_micro` counts all decisions alike, `f1_macro` all labels; `accuracy` is the share of texts whose labels are all
    right; `lrap` is the label ranking average precision, which needs no threshold: how many of the labels ranked at
    least as high as a true one are true themselves, 1 for a text without labels.
    """
    from sklearn.metrics import (
        accuracy_score,
        f1_score,
        label_ranking_average_precision_score,
    )

    predicted = (scores >= threshold).astype(int)
    known: dict[str, Callable[[], float]] = {
        "f1_micro": lambda: f1_score(truth, predicted, average="micro", zero_division=0),
        "f1_macro": lambda: f1_score(truth, predicted, average="macro", zero_division=0),
        "accuracy": lambda: accuracy_score(truth, predicted),
        "lrap": lambda: label_ranking_average_precision_score(truth, scores),
    }
    return chosen(known, metrics)


def regression_metrics(truth: NDArray[Any], predicted: NDArray[Any], metrics: Sequence[str]) -> dict[str, float]:
    """Measure predicted numbers; a correlation with a constant is 0 here, where mathematics leaves it undefined."""
    from scipy.stats import pearsonr, spearmanr

    flat = len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(predicted) == 0
    known: dict[str, Callable[[], float]] = {
        "pearson": lambda: 0.0 if flat else pearsonr(truth, predicted).statistic,
        "spearman": lambda: 0.0 if flat else spearmanr(truth, predicted).statistic,
        "mean_squared_error": lambda: np.mean((truth - predicted) ** 2),
    }
    return chosen(known, metrics)


def tagging_metrics(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]], metrics: Sequence[str]
) -> dict[str, float]:
    """Measure predicted tags, None where a word got none.

    `f1`, `precision` and `recall` are seqeval's micro averages over entities, with a word without a tag
    taken as outside; in `accuracy` such a word is wrong.
    """
    from seqeval.metrics import f1_score, precision_score, recall_score

    # Tags such as NOUN are no entities of a scheme, and are not meant to be; the library writes each to the terminal.
    warnings.filterwarnings("ignore", message=".* seems not to be NE tag", category=UserWarning)
    entities = [["O" if tag is None else tag for tag in tags] for tags in predicted]
    gold = [list(tags) for tags in truth]
    known: dict[str, Callable[[], float]] = {
        "f1": lambda: f1_score(gold, entities, zero_division=0),
        "precision": lambda: precision_score(gold, entities, zero_division=0),
        "recall": lambda: recall_score(gold, entities, zero_division=0),
        "accuracy": lambda: _accuracy(truth, predicted),
    }
    return chosen(known, metrics)


def _accuracy(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]]) -> float:
    pairs = [pair for tags, guesses in zip(truth, predicted, strict=True) for pair in zip(tags, guesses, strict=True)]
    return sum(tag == guess for tag, guess in pairs) / len(pairs)


def reduce_logits(logits: Any, labels: Any, *, causal: bool) -> Any:
    """Reduce the logits of a batch to [batch, 3]; a causal model's logits speak of the next token.

    Args:
        logits: [batch, length, vocabulary], in NumPy or in torch.
        labels: [batch, length], in the same.
        causal: Whether position n speaks of token n + 1.
    """
    if causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    counted = labels != IGNORED
    if isinstance(logits, np.ndarray):
        wide = logits.astype(np.float32)
        shifted = wide - wide.max(-1, keepdims=True)
        total = np.log(np.exp(shifted).sum(-1))
        chosen_logits = np.take_along_axis(shifted, np.where(counted, labels, 0)[..., None], -1)[..., 0]
        losses = np.where(counted, total - chosen_logits, 0)
        right = (logits.argmax(-1) == labels) & counted
        return np.stack([losses.sum(-1), counted.sum(-1), right.sum(-1)], axis=-1).astype(np.float32)
    import torch
    from torch.nn.functional import cross_entropy

    nll = cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    right = (logits.argmax(-1) == labels) & counted
    return torch.stack([nll.sum(-1), counted.sum(-1).float(), right.sum(-1).float()], dim=-1)


def likelihood_metrics(reduced: Any, metrics: Sequence[str]) -> dict[str, float]:
    """Measure reduced predictions.

    `loss` is the mean over all tokens predicted, not over items, so it does not depend on the batch size.
    """
    rows = np.asarray(reduced, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise DataError(
            f"predictions of shape `{rows.shape}` are not reduced; "
            "pass each batch's logits and labels through `TaskData.outputs`"
        )
    nll, tokens, right = rows.sum(0)
    if tokens == 0:
        raise DataError("no token was predicted; give longer texts")
    some = rows[:, 1] > 0
    known: dict[str, Callable[[], float]] = {
        "loss": lambda: nll / tokens,
        "perplexity": lambda: math.exp(min(nll / tokens, 700.0)),
        "accuracy": lambda: right / tokens,
        "last_word_accuracy": lambda: np.mean(rows[some, 2] == rows[some, 1]),
    }
    return chosen(known, metrics)


#: Queries compared at once, so that the similarities of a large set never lie in memory together.
_CHUNK = 1024


def one_nearest_neighbour(
    database: ArrayLike, database_labels: ArrayLike, queries: ArrayLike, query_labels: ArrayLike
) -> float:
    """Share of queries whose nearest item in the database bears the same label.

    Args:
        database: Embeddings to search, [items, width].
        database_labels: Their labels, [items].
        queries: Embeddings to look up, [queries, width].
        query_labels: Their labels, [queries].

    Example:
        >>> one_nearest_neighbour([[1, 0], [0, 1]], ["a", "b"], [[2, 1]], ["a"])
        1.0
    """
    items, looked_up = _unit(database, database_labels), _unit(queries, query_labels)
    if items.shape[1] != looked_up.shape[1]:
        raise DataError(
            f"queries are {looked_up.shape[1]} wide, the database {items.shape[1]}; embed both with one model"
        )
    nearest = _nearest(items, looked_up, own=False)
    return float(np.mean(np.asarray(database_labels)[nearest] == np.asarray(query_labels)))


def leave_one_out(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Share of items whose nearest other item bears the same label."""
    items = _unit(embeddings, labels)
    if len(items) < 2:
        raise DataError("one item has no neighbour; give at least two")
    nearest = _nearest(items, items, own=True)
    return float(np.mean(np.asarray(labels)[nearest] == np.asarray(labels)))


def _nearest(items: NDArray[Any], queries: NDArray[Any], *, own: bool) -> NDArray[np.intp]:
    """Index of the nearest item for each query; with `own`, query i is item i and does not count."""
    found = []
    for begin in range(0, len(queries), _CHUNK):
        similarity = queries[begin : begin + _CHUNK] @ items.T  # [chunk, items]
        if own:
            rows = np.arange(len(similarity))
            similarity[rows, begin + rows] = -np.inf
        found.append(similarity.argmax(-1))
    return np.concatenate(found)


def _unit(vectors: ArrayLike, labels: ArrayLike) -> NDArray[Any]:
    array = np.asarray(vectors, dtype=np.float32)
    if array.ndim != 2 or len(array) == 0 or len(array) != len(np.asarray(labels)):
        raise DataError(
            f"embeddings of shape `{array.shape}` do not go with {len(np.asarray(labels))} labels; "
            "give one row of numbers for each label"
        )
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    unit: NDArray[Any] = array / np.maximum(norms, np.finfo(np.float32).tiny)
    return unit


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = frozenset(string.punctuation)


def normalise(answer: str) -> str:
    """Lower case, without punctuation, English articles and surplus blanks.

    SQuAD knows only ASCII punctuation. In an answer with Chinese characters every Unicode punctuation mark
    is dropped as well, as MLQA does, for 《》 and 。 are what quotes and stops are there.
    """
    unicode_marks = any(_ideograph(character) for character in answer)
    kept = (
        character
        for character in answer.lower()
        if character not in _ASCII_PUNCTUATION
        and not (unicode_marks and unicodedata.category(character).startswith("P"))
    )
    return " ".join(_ARTICLES.sub(" ", "".join(kept)).split())


def words(answer: str) -> list[str]:
    """Words of a normalised answer; Chinese, which has no blanks between words, gives its characters."""
    return [word for part in normalise(answer).split() for word in _mixed(part)]


def exact_match(predicted: str, truths: Sequence[str]) -> float:
    """1 when the prediction equals one of the answers; no answers mean that the empty one is right."""
    return max(float(normalise(predicted) == normalise(truth)) for truth in truths or [""])


def answer_f1(predicted: str, truths: Sequence[str]) -> float:
    """The best F1 of words shared with one of the answers."""
    return max(_f1(words(predicted), words(truth)) for truth in truths or [""])


def _f1(predicted: list[str], truth: list[str]) -> float:
    if not predicted or not truth:
        return float(predicted == truth)
    shared = sum((Counter(predicted) & Counter(truth)).values())
    return 2 * shared / (len(predicted) + len(truth))


def _mixed(part: str) -> Iterator[str]:
    word = ""
    for character in part:
        if _ideograph(character):
            if word:
                yield word
            yield character
            word = ""
        else:
            word += character
    if word:
        yield word


def _ideograph(character: str) -> bool:
    point = ord(character)
    return 0x4E00 <= point <= 0x9FFF or 0x3400 <= point <= 0x4DBF or 0x20000 <= point <= 0x2FA1F
