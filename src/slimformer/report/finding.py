"""What an analysis returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from slimformer.report.page import Figure

Data = TypeVar("Data")


@dataclass(frozen=True)
class Finding(Generic[Data]):
    """Numbers, and a picture of them for a page."""

    data: Data
    figure: Figure
