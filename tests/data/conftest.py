"""Data tests have a cache of their own and no data folder, whatever the user's machine has."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    return tmp_path / "cache" / "coterie"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data folder, laid out as a user's would be."""
    folder = tmp_path / "files"
    folder.mkdir()
    return folder
