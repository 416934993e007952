"""Which task, on which data: the settings that every command on a task shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from slimformer.config import Config, Positive
from slimformer.files import as_path
from slimformer.models.settings import Store
from slimformer.tasks.folder import holds_tables, why_whole
from slimformer.tasks.splits import parse_shares
from slimformer.tasks.task import get_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slimformer.models.sentence import SentenceSettings
    from slimformer.tasks.task import TaskData

#: Options that an artifact remembers, so that it can be evaluated without being told again.
RECORDED = (
    "text_column", "label_column", "header", "quoting", "shares", "label_separator", "language", "max_length",
)  # fmt: skip


def _column(value: Any) -> Any:
    """YAML reads the number of a column as a number."""
    return str(value) if type(value) is int else value


def _shares(value: Any) -> Any:
    """Shares as a text, which YAML and Python may give as a list."""
    if value is None:
        return None
    parse_shares(value)
    return value if isinstance(value, str) else ",".join(str(share) for share in value)


#: The name of a column, or its number.
Column = Annotated[str | None, BeforeValidator(_column)]


class BaseOptions(Config):
    """What to start from and where the result goes."""

    model: str | None = Field(None, description="The base: a folder, a Hub name or an alias such as `minilm`.")
    out: str | None = Field(
        None, description="Folder for the result; it must not exist yet, unless `--overwrite` is given."
    )


class StoreOptions(Config):
    """How the weights of a result that is a plain checkpoint are stored."""

    store: Store | None = Field(
        None,
        description="Type of the weights in the file: `float32`, or `half` (float16) or `bfloat16`, half the bytes, "
        "checked for what they lose; by default float32, of `trim` and `extend` what the base is stored as.",
    )


class TaskOptions(Config):
    """The task, its data and how texts are cut."""

    task: str | None = Field(
        None, description="A data set such as `sst2`, or a kind such as `classification` or `tagging`."
    )
    data: str | None = Field(None, description="A folder or file with the data, or a Hub data set name.")
    text_column: Column = Field(None, description="Column with the text; two, joined by a comma, for pairs.")
    label_column: Column = Field(None, description="Column with the label.")
    header: bool | None = Field(
        None,
        description="Whether the first line of CSV and TSV files names the columns; else their numbers from 0 do.",
    )
    quoting: Literal["csv", "none"] | None = Field(
        None,
        description="Whether double quotes enclose fields (`csv`), as in CSV, or belong to them (`none`), as in TSV.",
    )
    shares: Annotated[str | None, BeforeValidator(_shares)] = Field(
        None,
        description="Parts of a single file for train,dev, such as `0.9,0.1`, or for train,dev,test.",
    )
    label_separator: str | None = Field(
        None, description="What stands between the labels of a row, where it may have several and the data leave doubt."
    )
    language: str | None = Field(None, description="Language of a multilingual data set.")
    max_length: Positive | None = Field(
        None,
        description="Tokens a text is cut to; by default the task's own, or fewer where the model takes fewer.",
    )
    limit: Positive | None = Field(None, description="Use only so many rows of each split.")


AnyOptions = TypeVar("AnyOptions", bound=TaskOptions)


def load_data(
    options: TaskOptions,
    splits: Sequence[str],
    *,
    causal: bool = False,
    sentence: SentenceSettings | None = None,
    labels: Sequence[str] | None = None,
) -> TaskData:
    """Load some splits of the data that options name.

    Args:
        options: The task and its data.
        splits: Some of train, dev, test.
        causal: Whether the model is a decoder; a language model's objective follows from it.
        sentence: How the model's outputs become one vector, where that is recorded.
        labels: The labels of a trained model, in the order of its head.
    """
    assert options.task is not None
    task = get_task(options.task)
    settings = {} if options.label_separator is None else {"label_separator": options.label_separator}
    return task.load(
        options.data,
        splits,
        text_column=options.text_column,
        label_column=options.label_column,
        header=options.header,
        quoting=options.quoting,
        shares=options.shares,
        limit=options.limit,
        labels=labels,
        language=options.language,
        kind=task.kind(**settings).for_model(causal=causal, sentence=sentence),
    )


def with_recorded(options: AnyOptions, settings: Mapping[str, Any]) -> AnyOptions:
    """Options with what an artifact recorded of its data, as far as it fits the data named here.

    Shares divide a single file, and a folder with a file for each split is none; header and quoting are for tables.
    """
    path = None if options.data is None else as_path(options.data)
    unfit = set() if why_whole(path) is None else {"shares"}
    if path is None or not holds_tables(path):
        unfit |= {"header", "quoting"}
    kept = {name: value for name, value in settings.items() if name not in unfit}
    return type(options).make({**kept, **options.given()})


def task_record(data: TaskData, options: TaskOptions) -> dict[str, Any]:
    """What an artifact has to remember of its task, so that it can be evaluated without being told again."""
    decided = {name: data.kind.settings[name] for name in RECORDED if data.kind.settings.get(name) is not None}
    given = {name: getattr(options, name) for name in RECORDED if getattr(options, name) is not None}
    return {
        "name": data.preset.name,
        "kind": data.kind.name,
        "labels": data.labels,
        "settings": {**decided, **given},
    }
