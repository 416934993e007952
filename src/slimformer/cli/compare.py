"""`slimformer compare`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.output import ConfigFile, Json, LoadFlags, print_json, print_line, print_notes, print_table
from slimformer.tasks.options import TaskOptions


def compare_models(
    *models: str,
    options: Annotated[TaskOptions, Parameter(name="*")] = TaskOptions(),  # noqa: B008 (frozen)
    split: str = "dev",
    max_bytes: str | None = None,
    max_ms: float | None = None,
    timed: int = 64,
    threads: int | None = None,
    batch_size: int = 32,
    report: str | None = None,
    flags: Annotated[LoadFlags, Parameter(name="*")] = LoadFlags(),  # noqa: B008 (frozen)
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Measure models on the same data: quality with an interval, bytes, memory, and milliseconds on the real texts.

    Args:
        models: Artifacts, masks, checkpoints, ONNX files, folders, Hub names or aliases; `FOLDER@S` is one size of an
            elastic model.
        split: Which split: train, dev or test.
        max_bytes: What a model may take on disk, such as `10MB`, with the base that a mask needs; marks those that do.
        max_ms: Milliseconds that a text may take in the median.
        timed: Rows that are timed, one at a time, with all models taking turns.
        threads: CPU threads; by default what PyTorch chooses.
        batch_size: Items per forward while quality is measured; changes speed and memory only.
        report: HTML file for the table, a picture, and what is right label by label.
    """
    from slimformer.files import as_path
    from slimformer.inference.comparison import Budgets, compare
    from slimformer.report.comparison import comparison_page, comparison_table, verdict
    from slimformer.report.page import check_page, write_page

    if report is not None:
        check_page(as_path(report))
    result = compare(
        models,
        TaskOptions.read(config, options.given()),
        split,
        budgets=Budgets.read(max_bytes, max_ms),
        timed=timed,
        threads=threads,
        batch_size=batch_size,
        **asdict(flags),
    )
    if report is not None:
        write_page(comparison_page(result), report)
    if as_json:
        print_json(result.as_dict())
        return
    print_notes(result.notes)
    table = comparison_table(result)
    print_table(table.title, table.columns, table.rows)
    print_line(table.note)
    print_line(verdict(result) + ("" if report is None else f"; report in {report}"))
