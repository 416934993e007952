"""Settings of trimming."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from slimformer.corpus.options import CorpusOptions, several
from slimformer.counts import MOST
from slimformer.tasks.options import BaseOptions, StoreOptions

#: Share of the corpus's tokens that stay as they are, unless something else is asked for.
COVERAGE = 0.9995


class TrimConfig(CorpusOptions, BaseOptions, StoreOptions):
    """Drop the word pieces that a domain does not use, from the embedding and the tokenizer together."""

    keep: int | None = Field(
        None, ge=1, le=MOST, description="Pieces to keep, those counted that are always kept; instead of `--coverage`."
    )
    coverage: float | None = Field(
        None, gt=0, le=1, description=f"Share of the corpus's tokens to keep; {COVERAGE} unless `--keep` is given."
    )
    always: Annotated[tuple[str, ...], BeforeValidator(several)] = Field(
        (), description="Words or texts whose pieces are kept, whatever the corpus says."
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
