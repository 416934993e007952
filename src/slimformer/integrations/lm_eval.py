"""lm-evaluation-harness: any artifact, at any size, on the harness's tasks.

Version 0.4.13 cannot be told of models of other packages, so it is called from here; later ones find `SlimformerLM` by
the entry point group `lm_eval.models`, as `--model slimformer --model_args pretrained=E,size=M`.
"""

from __future__ import annotations

import difflib
import json
import logging
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.counts import check_count
from slimformer.errors import CheckpointError, ConfigError, DataError, describe
from slimformer.files import as_path
from slimformer.inference.door import look_up, open_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slimformer.inference.door import OpenModel
    from slimformer.inference.source import Source

#: Endings of data files → what reads them.
READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
#: The splits that a task of the harness may name, the one that is measured first.
SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")


def evaluate_with_harness(
    name: str | Path,
    tasks: Sequence[str],
    *,
    data: str | Path | None = None,
    limit: int | None = None,
    few_shot: int | None = None,
    batch_size: int = 8,
    **loading: Any,
) -> dict[str, Any]:
    """Measure a decoder on tasks of lm-evaluation-harness.

    Args:
        name: An artifact, a folder, a Hub name or an alias of a decoder.
        tasks: Names of the harness's tasks, such as `lambada_openai`.
        data: A folder with local data, `TASK.jsonl` or `TASK/SPLIT.jsonl` (Parquet and CSV too) with the columns of the
            task's own data set; and with more tasks, as the YAML files that the harness reads, which may run code.
        limit: Use only so many examples of each task.
        few_shot: Examples before each question; by default the task's own number.
        batch_size: Requests per forward; changes speed and memory only.
        loading: What else `open_model` takes, such as `size`.

    Returns:
        For each task its metrics, with their standard errors as `METRIC_stderr`.
    """
    from jinja2 import TemplateError

    harness = _harness()
    check_count("batch-size", batch_size)
    source = _decoder(look_up(name))
    with _quiet(), _found(data, tasks) as loaded:
        opened = _open(source, **loading)
        model = _language_model(opened, batch_size)
        settings = {"num_fewshot": few_shot, "limit": limit, "bootstrap_iters": 0, "log_samples": False}
        try:
            results = harness.simple_evaluate(model, tasks=loaded, task_manager=_manager(None), **settings)
        except (AttributeError, KeyError, TypeError, ValueError, TemplateError) as error:  # by its templates on a row
            raise DataError(
                f"the harness cannot use the data of `{', '.join(tasks)}`: {describe(' '.join(str(error).split()))}; "
                "give rows with the columns and values of the original data set"
            ) from error
    return {
        "artifact": str(name),
        "tasks": {task: _metrics(values) for task, values in results["results"].items()},
        "examples": {task: counts["effective"] for task, counts in results["n-samples"].items()},
    }


def __getattr__(name: str) -> Any:
    if name == "SlimformerLM":
        return _language_model_class()
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


def _harness() -> Any:
    try:
        import lm_eval
    except ImportError:
        raise ConfigError("`--lm-eval` needs the package `lm-eval`; install `slimformer[lm-eval]`") from None
    return lm_eval


def _decoder(source: Source) -> Source:
    if not models.is_causal(source.config):
        raise CheckpointError(
            f"`{source.name}` is a `{source.config.model_type}`, and the harness's tasks need a decoder; give a decoder"
        )
    return source


def _open(source: Source, **loading: Any) -> OpenModel:
    from transformers import AutoModelForCausalLM

    opened = open_model(source, model_class=AutoModelForCausalLM, **loading)
    if opened.model.get_output_embeddings() is None:
        raise CheckpointError(
            f"`{source.name}` is a `{source.architecture}`, which predicts no tokens; give a model for causal language "
            "modelling"
        )
    return opened


def _language_model(opened: OpenModel, batch_size: int) -> Any:
    """An open model as the harness takes it."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=opened.model, batch_size=batch_size, **_reading(opened))


def _reading(opened: OpenModel) -> dict[str, Any]:
    """How the harness has to read for a model: with its tokenizer, within its positions, after its first token."""
    tokenizer = opened.processor
    names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id")
    prefix = next((token for name in names if (token := getattr(tokenizer, name, None)) is not None), None)
    if prefix is None:
        raise CheckpointError(
            f"the tokenizer of `{opened.source.name}` has no token to begin a text with, which the harness needs; give "
            "it a `bos_token`"
        )
    return {
        "tokenizer": tokenizer,
        "max_length": models.positions(opened.source.config),
        "prefix_token_id": prefix,
        # A token that ends every text would stand between a question and its answer.
        **({"add_bos_token": False} if _ends_texts(tokenizer) else {}),
    }


def _ends_texts(tokenizer: Any) -> bool:
    """Whether a tokenizer puts a token of its own after a text."""
    plain, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    return bool(whole[len(whole) - len(plain) :] != plain)


@cache
def _language_model_class() -> Any:
    _harness()
    from lm_eval.models.huggingface import HFLM

    class SlimformerLM(HFLM):  # type: ignore[misc]
        """Any artifact as a model of the harness.

        Args:
            pretrained: An artifact, a folder, a Hub name or an alias of a decoder.
            size: Which size of an elastic model; by default the largest.
            more: What else `HFLM` takes.
        """

        def __init__(self, pretrained: str, size: str | None = None, **more: Any) -> None:
            opened = _open(_decoder(look_up(pretrained)), size=size)
            super().__init__(pretrained=opened.model, **{**_reading(opened), **more})

    return SlimformerLM


@contextmanager
def _found(data: str | Path | None, tasks: Sequence[str]) -> Iterator[list[Any]]:
    """The tasks of some names; those with local data read them instead of the data set they name."""
    folder = None if data is None else as_path(data)
    if folder is not None and not folder.is_dir():
        raise DataError(f"no folder at `{data}`; `--lm-eval-data` is a folder of data files or task files")
    own = _manager(folder)
    managers = {task: own if task in own.task_index else _known() for task in tasks}
    for task, manager in managers.items():
        if task not in manager.task_index:
            near = difflib.get_close_matches(task, [*own.all_tasks, *manager.all_tasks], n=1)
            hint = f" (do you mean `{near[0]}`?)" if near else ""
            raise ConfigError(f"the harness has no task `{task}`{hint}; `lm-eval ls tasks` lists them")
    with TemporaryDirectory(prefix="slimformer-") as drafts:
        local = {task: files for task in tasks if folder is not None and (files := _local_files(folder, task))}
        for task, files in local.items():
            _write_task(Path(drafts) / f"{task}.yaml", managers[task].task_index[task].yaml_path, task, files)
        managers |= dict.fromkeys(local, _manager(Path(drafts)))
        yield [_load(manager, task) for task, manager in managers.items()]


def _manager(folder: Path | None) -> Any:
    """The tasks in a folder alone."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=folder and str(folder), include_defaults=False)


@cache
def _known() -> Any:
    """The tasks that come with the harness: reading some fifteen thousand takes seconds."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _local_files(folder: Path, task: str) -> dict[str, Path]:
    """Data files of a task by split; the one of a task in a single file is called by nothing."""
    for ending in READERS:
        if (folder / f"{task}{ending}").is_file():
            return {"": folder / f"{task}{ending}"}
    parts = sorted((folder / task).iterdir()) if (folder / task).is_dir() else []
    return {part.stem: part for part in parts if part.suffix in READERS}


def _write_task(path: Path, template: Path | None, task: str, files: dict[str, Path]) -> None:
    """Write a task that is another one but for where its data are."""
    from lm_eval.tasks._yaml_loader import load_yaml

    if template is None:
        raise DataError(f"task `{task}` has no task file, so it cannot read local data; name its single tasks")
    config = load_yaml(template, resolve_func=False)
    named = {role: config[role] for role in SPLITS if config.get(role)}
    if not named:
        raise DataError(f"`{task}` is a group of tasks, which has no data of its own; name its single tasks")
    measured = named.get("test_split") or next(iter(named.values()))
    present = {split or measured: file.resolve() for split, file in files.items()}
    if measured not in present:
        raise DataError(
            f"task `{task}` is measured on its split `{measured}`, and there are {', '.join(map(str, present))} only; "
            f"add `{task}/{measured}.jsonl`"
        )
    absent = {role: None for role, split in named.items() if split not in present}
    changed = {
        "include": str(template),
        "task": task,
        "dataset_path": READERS[present[measured].suffix],
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(file) for split, file in present.items()}},
        **absent,
    }
    path.write_text(json.dumps(changed), encoding="utf-8")  # JSON is YAML


def _load(manager: Any, task: str) -> Any:
    """A task with its data; else an error that says how to bring them."""
    try:
        built = list(manager.load([task])["tasks"].values())
    except Exception as error:  # whatever `datasets` and its readers raise
        raise DataError(
            f"the data of task `{task}` cannot be read: {describe(' '.join(str(error).split()))}; without a network, "
            f"put them into a folder as `{task}.jsonl` and give it with `--lm-eval-data`"
        ) from error
    if len(built) != 1:
        raise ConfigError(f"`{task}` stands for {len(built)} tasks; name them one by one")
    return built[0]


def _metrics(values: dict[str, Any]) -> dict[str, float]:
    """Metrics by their names, without the name of the filter, which is `none` where a task has none."""
    named = {}
    for key, value in values.items():
        metric, _, filtered = key.partition(",")
        if filtered and isinstance(value, (int, float)):
            named[metric if filtered == "none" else f"{metric} ({filtered})"] = float(value)
    return named


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the harness's own log to what went wrong, and leave out how far files were read."""
    import datasets

    logger = logging.getLogger("lm_eval")
    before, bars = logger.level, not datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(before)
        if bars:
            datasets.enable_progress_bars()
