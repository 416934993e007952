"""What an objective returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A loss and what it is made of.

    Args:
        total: What is minimised.
        parts: The terms it is made of, for the log.
    """

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
