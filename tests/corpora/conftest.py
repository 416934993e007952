from __future__ import annotations

from tests.tasks.conftest import shared_data, write

__all__ = ["shared_data", "write"]
