"""`slimformer predict`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import AskFlags
from slimformer.errors import DataError, UsageError, presentable, visible

if TYPE_CHECKING:
    from slimformer.inference.pipeline import Reply, TaskPipeline

JsonLines = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object a line for each answer instead of text.")
]


def predict_requests(
    artifact: str,
    *texts: str,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    batch_size: int = 32,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    draft: str | None = None,
    task: str | None = None,
    flags: Annotated[AskFlags, Parameter(name="*")] = AskFlags(),  # noqa: B008 (frozen)
    as_json: JsonLines = False,
) -> None:
    """Answer texts with an artifact, a mask or any checkpoint: labels, numbers, tags, spans, vectors or text.

    Args:
        artifact: The folder of the artifact; or a folder, a Hub name or an alias of a model, or an ONNX file with its
            tokenizer beside it.
        texts: What is asked: texts, paths of images for a vision model, or JSON objects such as
            `{"question": …, "context": …}`.
        file: A file of requests: a text a line, JSON Lines, CSV or TSV; `-` for standard input, which is answered line
            by line in a terminal and else in batches.
        batch_size: Requests per forward; changes speed and memory only.
        max_length: Tokens a text is cut to; by default as the model was trained, or as many as it takes.
        max_new_tokens: Tokens that a decoder adds at most; 64 by default.
        draft: Size of an elastic decoder, smaller than the one in use, that drafts the text, which the other verifies;
            changes speed only.
        task: What the model is to do instead of what it was made for, such as `retrieval` for vectors.
    """
    from slimformer.inference.pipeline import open_pipeline
    from slimformer.inference.requests import STDIN, given_requests, open_requests

    if bool(texts) == (file is not None):
        both = "texts and `--file` are given" if texts else "nothing is asked"
        raise UsageError(f"{both}; give texts, or `--file FILE`, `-` for standard input")
    source = nullcontext(given_requests(texts)) if file is None else open_requests(file)
    with source as requests:
        pipeline = open_pipeline(
            artifact,
            task=task,
            **asdict(flags),
            max_length=max_length,
            max_new_tokens=max_new_tokens,
            draft=draft,
            batch_size=batch_size,
        )
        live = file == STDIN
        ahead = None if not live else 1 if sys.stdin.isatty() else batch_size
        asked = failed = 0
        for reply in pipeline.stream(requests, ahead):
            asked += 1
            failed += not _print(pipeline, reply, as_json)
            if live:
                sys.stdout.flush()
    sys.stdout.flush()
    if failed:
        raise DataError(f"{failed} of {asked} requests could not be answered; see what was said of each")


def _print(pipeline: TaskPipeline, reply: Reply, as_json: bool) -> bool:
    """Write one answer, or what is wrong with a request; return whether it is an answer."""
    from slimformer.inference.pipeline import Failure

    if not isinstance(reply, Failure):
        line = json.dumps(reply, ensure_ascii=False) if as_json else pipeline.kind.line(reply)
        sys.stdout.write(f"{visible(line)}\n")
        return True
    if as_json:
        failure: dict[str, Any] = {"line": reply.line, "error": reply.error}
        sys.stdout.write(f"{visible(json.dumps(failure, ensure_ascii=False))}\n")
    else:
        sys.stdout.flush()
        sys.stderr.write(f"error: line {reply.line}: {presentable(reply.error)}\n")
    return False
