"""What to train on: the settings every method that works on a task shares."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slimformer.config import Config

Positive = Annotated[int, Field(ge=1)]


class BaseOptions(Config):
    """What to start from and where the result goes."""

    model: str | None = Field(None, description="The base: a folder, a Hub name or an alias such as `minilm`.")
    out: str | None = Field(
        None, description="Folder for the result; it must not exist yet, unless `--overwrite` is given."
    )


class TaskOptions(Config):
    """The task, its data and how texts are cut."""

    task: str | None = Field(
        None, description="A data set such as `sst2`, or a kind such as `classification` or `tagging`."
    )
    data: str | None = Field(None, description="A folder or file with the data, or a Hub data set name.")
    text_column: str | None = Field(None, description="Column with the text; two, joined by a comma, for pairs.")
    label_column: str | None = Field(None, description="Column with the label.")
    language: str | None = Field(None, description="Language of a multilingual data set.")
    max_length: Positive | None = Field(None, description="Tokens a text is cut to; by default the task's own.")
    limit: Positive | None = Field(None, description="Use only so many rows of each split.")
