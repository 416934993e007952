"""`slimformer evaluate` and `compare`: what models are worth on a task."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import (
    AskFlags,
    ConfigFile,
    Engine,
    Json,
    LoadFlags,
    Quiet,
    print_json,
    print_line,
    print_notes,
    print_table,
)
from slimformer.errors import UsageError
from slimformer.tasks.options import TaskOptions


def evaluate_model(
    artifact: str,
    *,
    options: Annotated[TaskOptions, Parameter(name="*")] = TaskOptions(),  # noqa: B008 (frozen)
    split: str = "dev",
    batch_size: int = 32,
    lm_eval: str | None = None,
    lm_eval_data: str | None = None,
    few_shot: int | None = None,
    flags: Annotated[AskFlags, Parameter(name="*")] = AskFlags(),  # noqa: B008 (frozen)
    config: ConfigFile = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure an artifact on a task; what is not given is taken from what it was trained for.

    Args:
        artifact: The folder of the artifact; or a folder, a Hub name or an alias whose model has a head for the task;
            or an ONNX file with its tokenizer beside it.
        split: Which split: train, dev or test.
        batch_size: Items per forward; changes speed and memory only.
        lm_eval: Tasks of lm-evaluation-harness for a decoder, joined by commas, in place of `--task` and `--data`.
        lm_eval_data: Folder with their data, `TASK.jsonl` or `TASK/SPLIT.jsonl`, and with task files of your own;
            without it the harness downloads what it needs.
        few_shot: Examples before each question of these tasks; by default as many as the task says.
    """
    if lm_eval is not None:
        _evaluate_with_harness(artifact, lm_eval, lm_eval_data, few_shot, options, batch_size, flags, as_json)
        return
    for flag, value in (("lm-eval-data", lm_eval_data), ("few-shot", few_shot)):
        if value is not None:
            raise UsageError(f"`--{flag}` is `{value}` without `--lm-eval`; name tasks of the harness, or leave it out")
    from slimformer.inference.evaluation import evaluate_on_task
    from slimformer.inference.routing import evaluate_routed

    if flags.engine is not None and flags.route is not None:
        raise UsageError(
            "`--engine` and `--route` are given; sizes are chosen in torch alone, so leave out one of them"
        )
    measure = evaluate_on_task if flags.route is None else evaluate_routed
    loading = {name: value for name, value in asdict(flags).items() if value is not None}
    result = measure(artifact, TaskOptions.read(config, options.given()), split, batch_size, **loading)
    if not quiet:
        print_notes(result["notes"])
    if as_json:
        print_json(result)
    else:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in result["metrics"].items())
        print_line(f"{artifact} on {result['task']}/{split}, {result['examples']} examples: {metrics}")
        if "route" in result:
            print_line(routed_line(result["route"]))


def _evaluate_with_harness(
    artifact: str,
    tasks: str,
    data: str | None,
    few_shot: int | None,
    options: TaskOptions,
    batch_size: int,
    flags: AskFlags,
    as_json: bool,
) -> None:
    from slimformer.integrations.lm_eval import evaluate_with_harness

    names = [name.strip() for name in tasks.split(",")]
    others = [name for name in options.given() if name != "limit"]
    others += [name for name in ("route", "engine") if getattr(flags, name) is not None]
    if others or not all(names):
        what = "an empty name is" if not all(names) else f"`--{others[0].replace('_', '-')}` is"
        raise UsageError(f"{what} given with `--lm-eval`; name tasks joined by commas, and leave out all but `--limit`")
    if few_shot is not None and few_shot < 0:
        raise UsageError(f"`--few-shot` is `{few_shot}`; give 0 or more")
    loading = {name: value for name, value in asdict(flags).items() if name not in ("route", "engine")}
    result = evaluate_with_harness(
        artifact, names, data=data, limit=options.limit, few_shot=few_shot, batch_size=batch_size, **loading
    )
    if as_json:
        print_json(result)
        return
    for task, metrics in result["tasks"].items():
        line = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print_line(f"{artifact} on {task}, {result['examples'][task]} examples: {line}")


def routed_line(route: dict[str, Any]) -> str:
    """Which sizes answered and, of a cascade, what that gained."""
    line = "answered by " + ", ".join(f"{size} {share:.1%}" for size, share in route["shares"].items())
    if "compute" not in route:
        return line
    low, high = route["interval"]
    return (
        f"{line}; {route['compute']:.3f} of the largest size's FLOPs, where random routing is right in "
        f"{route['random_accuracy']:.4f}: {route['difference']:+.4f} (95 % interval {low:+.4f} to {high:+.4f})"
    )


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
    engine: Engine = None,
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
        engine=engine,
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
