"""Settings of extending a vocabulary."""

from __future__ import annotations

from pydantic import Field

from slimformer.corpus.options import CorpusOptions
from slimformer.counts import MOST
from slimformer.tasks.options import BaseOptions, StoreOptions


class ExtendConfig(CorpusOptions, BaseOptions, StoreOptions):
    """Give a model the word pieces that a domain needs most, in the embedding and the tokenizer together."""

    new_tokens: int | None = Field(
        None, ge=1, le=MOST, description="Word pieces to add, those that save most tokens of the corpus."
    )
