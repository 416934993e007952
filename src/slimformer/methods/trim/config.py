"""Settings of trimming."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from slimformer.config import Config

#: Share of the corpus's tokens that stay as they are, unless something else is asked for.
COVERAGE = 0.9995


def _several(value: Any) -> Any:
    """Accept one name as well as a list of them, and paths as text."""
    if value is None:
        return None
    return tuple(str(name) for name in ([value] if isinstance(value, str | PurePath) else value))


class TrimConfig(Config):
    """Drop the word pieces that a domain does not use, from the embedding and the tokenizer together."""

    model: str | None = Field(None, description="The model: a folder, a Hub name or an alias such as `minilm`.")
    corpus: Annotated[tuple[str, ...] | None, BeforeValidator(_several)] = Field(
        None, description="Text of the domain: text, JSONL, CSV, TSV or Parquet files, folders of them, a Hub data set."
    )
    text_column: str | None = Field(None, description="Column with the text, in files that have columns.")
    documents: Literal["lines", "paragraphs"] = Field(
        "lines", description="What a document of a text file is: a line, or what stands between blank lines."
    )
    keep: int | None = Field(
        None, ge=1, description="Pieces to keep, those counted that are always kept; instead of `--coverage`."
    )
    coverage: float | None = Field(
        None, gt=0, le=1, description=f"Share of the corpus's tokens to keep; {COVERAGE} unless `--keep` is given."
    )
    always: Annotated[tuple[str, ...], BeforeValidator(_several)] = Field(
        (), description="Words or texts whose pieces are kept, whatever the corpus says."
    )
    out: str | None = Field(
        None, description="Folder for the result; it must not exist yet, unless `--overwrite` is given."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.keep is not None and self.coverage is not None:
            raise ValueError(
                f"`keep` is {self.keep} and `coverage` is {self.coverage}, and both say how many pieces stay; "
                "leave one of them out"
            )
        return self

    @property
    def share(self) -> float | None:
        """The coverage to reach; None where a number of pieces was asked for."""
        return COVERAGE if self.keep is None and self.coverage is None else self.coverage
