"""How large a student is and what it starts from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slimformer.config import Config

Start = Literal["random", "truncate", "spaced"]


#: Settings that tell how large a student is.
SIZES = ("layers", "hidden", "heads", "ffn", "embedding")


class StudentShape(Config):
    """How large the student is; what is not given is the teacher's."""

    layers: int | None = Field(None, ge=1, description="Blocks of the student.")
    hidden: int | None = Field(None, ge=1, description="Width of the student's hidden states.")
    heads: int | None = Field(None, ge=1, description="Attention heads of the student.")
    ffn: int | None = Field(None, ge=1, description="Feed-forward neurons; by default in the teacher's proportion.")
    embedding: int | None = Field(None, ge=1, description="Width of factorised embeddings, less than `--hidden`.")
    start: Start = Field(
        "random",
        description="What the student starts from: random weights, the teacher's bottom blocks, or evenly spaced ones.",
    )
