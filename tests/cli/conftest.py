from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest

from tests import corpus, runs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small base and generated data, for all commands; tests do not change it."""
    folder = tmp_path_factory.mktemp("models")
    corpus.model_folder(folder / "base")
    corpus.data_folder(folder / "data")
    return folder


@pytest.fixture(scope="session")
def base(shelf: Path) -> Path:
    return shelf / "base"


@pytest.fixture(scope="session")
def data(shelf: Path) -> Path:
    return shelf / "data"


@pytest.fixture(scope="session")
def pieces(shelf: Path) -> Path:
    """A model whose words have parts, and a text of words that it has no pieces for."""
    runs.reader(shelf / "pieces" / "model")
    corpus.domain_file(shelf / "pieces" / "text.txt")
    return shelf / "pieces"


@pytest.fixture(scope="session")
def artifact(shelf: Path, base: Path, data: Path) -> Path:
    """An artifact for `yes` and `no`."""
    assert runs.finetune(base, "classification", data, shelf / "artifact", "--quiet").code == 0
    return shelf / "artifact"


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders go during the test, to see that none stays."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
