"""SQuAD's JSON, versions 1 and 2, and the flat rows that Hub data sets hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.files import JsonError, parse_json
from slimformer.tasks.readers.table import Row, Table, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = ("id", "title", "context", "question", "answers")


def read_squad(path: Path) -> Table:
    """Read a SQuAD file; the line of a row is the question's number, counted from 1.

    `answers` of a row is `{"text": [...], "answer_start": [...]}`, with empty lists where the context
    holds no answer (`is_impossible`).
    """
    try:
        content = parse_json(read_text(path))
    except JsonError as error:
        raise DataError(f"`{path}` line {error.line} is not valid JSON: {error}; copy the file again") from error
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise DataError(
            f"`{path}` has no list `data`; give a file in SQuAD's JSON layout, or one question a line as JSONL"
        )
    rows = [Row(values, str(path), number) for number, values in enumerate(_questions(path, content["data"]), start=1)]
    return Table(str(path), COLUMNS, rows)


def _questions(path: Path, articles: list[Any]) -> Iterator[dict[str, Any]]:
    for number, article in enumerate(articles, start=1):
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield _question(question, paragraph["context"], article.get("title") or f"article {number}")
        except (KeyError, TypeError, AttributeError) as error:
            what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else "a part of it is of another kind"
            raise DataError(
                f"`{path}` article {number} is not in SQuAD's layout: {what}; "
                "it needs paragraphs, context, qas, id, question and answers"
            ) from error


def _question(question: dict[str, Any], context: str, title: str) -> dict[str, Any]:
    impossible = question.get("is_impossible", False)
    answers = [] if impossible else question["answers"]
    return {
        "id": str(question["id"]),
        "title": title,
        "context": context,
        "question": question["question"],
        "answers": {
            "text": [answer["text"] for answer in answers],
            "answer_start": [answer["answer_start"] for answer in answers],
        },
    }
