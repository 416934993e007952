from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

# Two test processes share two cores; more threads than that would only wait for each other.
torch.set_num_threads(1)


class Golden:
    """Reference arrays of one file, as tensors, by their full names."""

    def __init__(self, name: str) -> None:
        with np.load(ROOT / "tests" / "golden" / f"{name}.npz", allow_pickle=False) as arrays:
            self.meta: dict[str, Any] = json.loads(str(arrays["meta"]))
            self._arrays = {key: torch.from_numpy(arrays[key]) for key in arrays.files if key != "meta"}

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._arrays[key].clone()

    def __contains__(self, key: str) -> bool:
        return key in self._arrays


@pytest.fixture(scope="session")
def golden():
    return Golden


@pytest.fixture(scope="session")
def stories() -> Path:
    """The folder of a real small decoder."""
    folder = SHARED / "weights" / "stories15M"
    if not folder.is_dir():
        pytest.skip(f"needs the real decoder in {folder}")
    return folder


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


#: Families whose tests belong to the quick ones: an encoder, a decoder and one for images.
QUICK_FAMILIES = frozenset({"bert", "llama", "vit"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests over all families count as slow for all but a few of them."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        family = None if parameters is None else parameters.params.get("family")
        if isinstance(family, str) and family not in QUICK_FAMILIES:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Let the collector pass over modules and tests, which stay: every training run begins with a full collection."""
    gc.collect()
    gc.freeze()
